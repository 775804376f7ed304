"""Which decoders the engine can run, read from a Hugging Face config.

All of them are the same machine (RMSNorm, rotary attention with grouped heads, SwiGLU) with a few switches.
A config that asks for anything beyond those switches is refused here rather than computed wrongly later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rollweave.errors import ModelError

SUPPORTED = ("llama", "qwen2", "qwen3")
# Scalings whose frequencies do not depend on the length of the sequence at hand.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes and switches of a decoder."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    positions: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool

    @classmethod
    def of(cls, config: Any) -> Architecture:
        """Read a Hugging Face config; raises ModelError if the engine cannot run it faithfully."""
        if problem := _unsupported(config):
            raise ModelError(
                f"the torch engine cannot run this model: {problem}. "
                f"It supports {', '.join(SUPPORTED)} with silu, full attention and "
                f"{', '.join(ROPE_TYPES)} rotary embeddings; choose such a model"
            )
        return cls(
            vocabulary=config.vocab_size,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            eps=config.rms_norm_eps,
            positions=config.max_position_embeddings,
            tied=config.tie_word_embeddings,
            qkv_bias=config.model_type == "qwen2",
            qk_norm=config.model_type == "qwen3",
        )


def _unsupported(config: Any) -> str | None:
    if config.model_type not in SUPPORTED:
        return f"its model_type is {config.model_type!r}"
    if config.hidden_act != "silu":
        return f"its hidden_act is {config.hidden_act!r}"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "it sets attention_bias or mlp_bias"
    if getattr(config, "use_sliding_window", False):
        return "it uses a sliding attention window"
    if (kind := config.rope_parameters["rope_type"]) not in ROPE_TYPES:
        return f"its rope_type is {kind!r}"
    return None


def rope_table(config: Any, architecture: Architecture, positions: int) -> torch.Tensor:
    """Rotations per position as unit complex numbers, [positions, head_dim / 2]."""
    frequencies, scale = _rope_frequencies(config, architecture.head_dim)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    return torch.complex(angles.cos() * scale, angles.sin() * scale)


def _rope_frequencies(config: Any, head_dim: int) -> tuple[torch.Tensor, float]:
    if (kind := config.rope_parameters["rope_type"]) == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (config.rope_parameters["rope_theta"] ** exponents), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies, float(scale)
