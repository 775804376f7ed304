"""The decoders that the engine can run, and their weights: fused, preallocated, filled from Hugging Face names.

All supported decoders have the same parts (RMSNorm, rotary attention with grouped heads, SwiGLU) and a few switches.
`Architecture.of` refuses a config that asks for anything else, because the engine would compute it wrongly.

Query, key and value are one matrix, gate and up another: fewer and larger GEMMs. The rows of query and key are
reordered so that the two halves Hugging Face rotates against each other lie side by side as one complex number;
rotary embedding is then a single complex multiplication, and dot products do not notice the order.

A set is allocated once and filled in place, so that an update costs one copy and no page faults: the engine keeps
two sets and swaps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from rollweave import crossing
from rollweave.crossing import INTEGERS
from rollweave.errors import ModelError
from rollweave.policies.prepare import SUPPORTED
from rollweave.weights.buckets import Into, RawTensor

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

    @property
    def kv_numbers(self) -> int:
        """How many numbers the keys and values of one token in one layer are."""
        return 2 * self.kv_heads * self.head_dim

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


def rope_table(rotary: Any, positions: int) -> Tensor:
    """The model's rotations per position as (scaled) unit complex numbers, [positions, head_dim / 2]."""
    angles = torch.arange(positions, dtype=torch.float32, device=rotary.inv_freq.device)[:, None] * rotary.inv_freq
    return torch.complex(angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling)


T = TypeVar("T")
Empty = Callable[..., Tensor]
"""Allocates a tensor of this shape."""


class LayerWeights:
    """One decoder layer."""

    def __init__(self, a: Architecture, empty: Empty) -> None:
        rows = (a.heads + 2 * a.kv_heads) * a.head_dim
        self.input_norm = empty(a.hidden)
        self.qkv = empty(rows, a.hidden)
        self.qkv_bias = empty(rows) if a.qkv_bias else None
        self.qk_norm = empty(a.heads + a.kv_heads, a.head_dim) if a.qk_norm else None
        self.output = empty(a.hidden, a.heads * a.head_dim)
        self.mlp_norm = empty(a.hidden)
        self.gate_up = empty(2 * a.intermediate, a.hidden)
        self.down = empty(a.hidden, a.intermediate)


class FusedWeights:
    """All weights of one policy version."""

    def __init__(self, architecture: Architecture, device: torch.device, dtype: torch.dtype) -> None:
        a = self.architecture = architecture
        self.device, self.dtype = device, dtype
        empty: Empty = partial(torch.empty, device=device, dtype=dtype)
        self.embedding = empty(a.vocabulary, a.hidden)
        self.layers = [LayerWeights(a, empty) for _ in range(a.layers)]
        self.final_norm = empty(a.hidden)
        self.head = self.embedding if a.tied else empty(a.vocabulary, a.hidden)

    def another(self) -> FusedWeights:
        """A set of the same kind, not filled yet."""
        return FusedWeights(self.architecture, self.device, self.dtype)

    @property
    def kv_bytes(self) -> int:
        """The size of the keys and values of one token in one layer."""
        return self.architecture.kv_numbers * self.embedding.element_size()

    def tensors(self) -> Iterator[Tensor]:
        yield from (self.embedding, self.final_norm, self.head)
        for layer in self.layers:
            yield from (tensor for tensor in vars(layer).values() if tensor is not None)

    def load(self, fill: Callable[[Into], T]) -> T:
        """Fill every tensor: `fill` hands over the Hugging Face tensors, in any order; returns what it returns."""
        missing = {place.name: place for place in self._places()}

        def put(name: str, tensor: RawTensor) -> None:
            if place := missing.pop(name, None):  # a tied head or a buffer may come too
                place.fill(tensor)

        answer = fill(put)
        if missing:
            raise ModelError(
                f"the weights lack {next(iter(missing))!r}: pass the model's full state dict, named as in Hugging Face"
            )
        return answer

    def _places(self) -> Iterator[FusedTarget]:
        yield FusedTarget("model.embed_tokens.weight", self.embedding)
        for number, layer in enumerate(self.layers):
            yield from self._layer_places(f"model.layers.{number}", layer)
        yield FusedTarget("model.norm.weight", self.final_norm)
        if not self.architecture.tied:
            yield FusedTarget("lm_head.weight", self.head)

    def _layer_places(self, name: str, layer: LayerWeights) -> Iterator[FusedTarget]:
        a = self.architecture
        yield FusedTarget(f"{name}.input_layernorm.weight", layer.input_norm)
        yield from self._qkv_places(f"{name}.self_attn", "weight", layer.qkv)
        if layer.qkv_bias is not None:
            yield from self._qkv_places(f"{name}.self_attn", "bias", layer.qkv_bias)
        if layer.qk_norm is not None:
            # One row per head, so that queries and keys are normalised and scaled in one go.
            yield FusedTarget(f"{name}.self_attn.q_norm.weight", layer.qk_norm[: a.heads], a.head_dim, (a.head_dim,))
            yield FusedTarget(f"{name}.self_attn.k_norm.weight", layer.qk_norm[a.heads :], a.head_dim, (a.head_dim,))
        yield FusedTarget(f"{name}.self_attn.o_proj.weight", layer.output)
        yield FusedTarget(f"{name}.post_attention_layernorm.weight", layer.mlp_norm)
        yield FusedTarget(f"{name}.mlp.gate_proj.weight", layer.gate_up[: a.intermediate])
        yield FusedTarget(f"{name}.mlp.up_proj.weight", layer.gate_up[a.intermediate :])
        yield FusedTarget(f"{name}.mlp.down_proj.weight", layer.down)

    def _qkv_places(self, name: str, kind: str, into: Tensor) -> Iterator[FusedTarget]:
        a = self.architecture
        query, key, value = torch.split_with_sizes(into, [h * a.head_dim for h in (a.heads, a.kv_heads, a.kv_heads)])
        yield FusedTarget(f"{name}.q_proj.{kind}", query, a.head_dim)
        yield FusedTarget(f"{name}.k_proj.{kind}", key, a.head_dim)
        yield FusedTarget(f"{name}.v_proj.{kind}", value)


@dataclass(frozen=True, slots=True)
class FusedTarget:
    """Where a Hugging Face tensor belongs among the fused ones."""

    name: str
    into: Tensor
    paired: int = 0
    """The size of a head, if the rows of each are reordered."""
    shape: tuple[int, ...] | None = None
    """Of the Hugging Face tensor, if it is repeated to fill the place."""

    def fill(self, tensor: RawTensor) -> None:
        shape, dtype = self.shape or tuple(self.into.shape), str(self.into.dtype).removeprefix("torch.")
        if tensor.shape != shape:
            raise ModelError(f"{self.name!r} has shape {tensor.shape}, but the model's config says {shape}")
        if tensor.dtype != dtype:
            raise ModelError(
                f"{self.name!r} came as {tensor.dtype}, but this engine computes in {dtype}: "
                f"publish the weights in {dtype}"
            )
        bits = tensor.data.view(INTEGERS[self.into.element_size()]).reshape(shape)
        crossing.fill(self.into, _paired(bits, self.paired) if self.paired else bits)


def _paired(source: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Rows (j, j + head_dim / 2) of every head side by side."""
    halves = source.reshape(-1, 2, head_dim // 2, *source.shape[1:])
    return halves.swapaxes(1, 2).reshape(source.shape)
