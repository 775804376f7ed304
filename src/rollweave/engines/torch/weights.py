"""The weights as the engine computes with them: fused, preallocated, filled from Hugging Face names.

Query, key and value are one matrix, gate and up another: fewer and larger GEMMs. The rows of query and key are
reordered so that the two halves Hugging Face rotates against each other lie side by side as one complex number;
rotary embedding is then a single complex multiplication, and dot products do not notice the order.

A set is allocated once and filled in place, so that an update costs one copy and no page faults: the engine keeps
two sets and swaps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rollweave.engines.torch.architecture import Architecture
from rollweave.errors import ModelError


class LayerWeights:
    """One decoder layer."""

    def __init__(self, a: Architecture) -> None:
        rows = (a.heads + 2 * a.kv_heads) * a.head_dim
        self.input_norm = torch.empty(a.hidden)
        self.qkv = torch.empty(rows, a.hidden)
        self.qkv_bias = torch.empty(rows) if a.qkv_bias else None
        self.qk_norm = torch.empty(a.heads + a.kv_heads, a.head_dim) if a.qk_norm else None
        self.output = torch.empty(a.hidden, a.heads * a.head_dim)
        self.mlp_norm = torch.empty(a.hidden)
        self.gate_up = torch.empty(2 * a.intermediate, a.hidden)
        self.down = torch.empty(a.hidden, a.intermediate)


class FusedWeights:
    """All weights of one policy version."""

    def __init__(self, architecture: Architecture) -> None:
        a = self.architecture = architecture
        self.embedding = torch.empty(a.vocabulary, a.hidden)
        self.layers = [LayerWeights(a) for _ in range(a.layers)]
        self.final_norm = torch.empty(a.hidden)
        self.head = self.embedding if a.tied else torch.empty(a.vocabulary, a.hidden)

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Fill every tensor from its Hugging Face parts (torch tensors or numpy arrays)."""
        _copy(tensors, "model.embed_tokens.weight", self.embedding)
        for number, layer in enumerate(self.layers):
            self._load_layer(tensors, f"model.layers.{number}", layer)
        _copy(tensors, "model.norm.weight", self.final_norm)
        if not self.architecture.tied:
            _copy(tensors, "lm_head.weight", self.head)

    def _load_layer(self, tensors: Mapping[str, Any], name: str, layer: LayerWeights) -> None:
        a = self.architecture
        _copy(tensors, f"{name}.input_layernorm.weight", layer.input_norm)
        self._load_qkv(tensors, f"{name}.self_attn", "weight", layer.qkv)
        if layer.qkv_bias is not None:
            self._load_qkv(tensors, f"{name}.self_attn", "bias", layer.qkv_bias)
        if layer.qk_norm is not None:
            # One row per head, so that queries and keys are normalised and scaled in one go.
            for part, rows in (("q", layer.qk_norm[: a.heads]), ("k", layer.qk_norm[a.heads :])):
                source = _tensor(tensors, f"{name}.self_attn.{part}_norm.weight", (a.head_dim,))
                rows.copy_(_paired(source, a.head_dim).expand_as(rows))
        _copy(tensors, f"{name}.self_attn.o_proj.weight", layer.output)
        _copy(tensors, f"{name}.post_attention_layernorm.weight", layer.mlp_norm)
        _copy(tensors, f"{name}.mlp.gate_proj.weight", layer.gate_up[: a.intermediate])
        _copy(tensors, f"{name}.mlp.up_proj.weight", layer.gate_up[a.intermediate :])
        _copy(tensors, f"{name}.mlp.down_proj.weight", layer.down)

    def _load_qkv(self, tensors: Mapping[str, Any], name: str, kind: str, into: torch.Tensor) -> None:
        a = self.architecture
        sizes = [a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.head_dim]
        for part, rows in zip("qkv", torch.split_with_sizes(into, sizes), strict=True):
            source = _tensor(tensors, f"{name}.{part}_proj.{kind}", tuple(rows.shape))
            rows.copy_(source if part == "v" else _paired(source, a.head_dim))


def _paired(source: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows (j, j + head_dim / 2) of every head side by side."""
    halves = source.reshape(-1, 2, head_dim // 2, *source.shape[1:])
    return halves.transpose(1, 2).reshape(source.shape)


def _copy(tensors: Mapping[str, Any], name: str, into: torch.Tensor) -> None:
    into.copy_(_tensor(tensors, name, tuple(into.shape)))


def _tensor(tensors: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if name not in tensors:
        raise ModelError(f"the weights lack {name!r}: pass the model's full state dict, named as in Hugging Face")
    source = torch.as_tensor(tensors[name])
    if tuple(source.shape) != shape:
        raise ModelError(f"{name!r} has shape {tuple(source.shape)}, but the model's config says {shape}")
    return source
