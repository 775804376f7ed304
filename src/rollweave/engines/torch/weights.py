"""The weights as the engine computes with them: fused, preallocated, filled from Hugging Face names.

Query, key and value are one matrix, gate and up another: fewer and larger GEMMs. The rows of query and key are
reordered so that the two halves Hugging Face rotates against each other lie side by side as one complex number;
rotary embedding is then a single complex multiplication, and dot products do not notice the order.

A set is allocated once and filled in place, so that an update costs one copy and no page faults: the engine keeps
two sets and swaps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from rollweave.engines.torch.architecture import Architecture
from rollweave.errors import ModelError
from rollweave.weights.buckets import Into

T = TypeVar("T")


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

    def load(self, fill: Callable[[Into], T]) -> T:
        """Fill every tensor: `fill` hands over the Hugging Face tensors, in any order; returns what it returns."""
        places = {place.name: place for place in self._places()}
        missing = dict.fromkeys(places)

        def put(name: str, tensor: Any) -> None:
            if name in places:  # a tied head or a buffer may come too
                places[name].fill(tensor)
                missing.pop(name, None)

        answer = fill(put)
        if missing:
            raise ModelError(
                f"the weights lack {next(iter(missing))!r}: pass the model's full state dict, named as in Hugging Face"
            )
        return answer

    def _places(self) -> Iterator[Place]:
        yield Place("model.embed_tokens.weight", self.embedding)
        for number, layer in enumerate(self.layers):
            yield from self._layer_places(f"model.layers.{number}", layer)
        yield Place("model.norm.weight", self.final_norm)
        if not self.architecture.tied:
            yield Place("lm_head.weight", self.head)

    def _layer_places(self, name: str, layer: LayerWeights) -> Iterator[Place]:
        a = self.architecture
        yield Place(f"{name}.input_layernorm.weight", layer.input_norm)
        yield from self._qkv_places(f"{name}.self_attn", "weight", layer.qkv)
        if layer.qkv_bias is not None:
            yield from self._qkv_places(f"{name}.self_attn", "bias", layer.qkv_bias)
        if layer.qk_norm is not None:
            # One row per head, so that queries and keys are normalised and scaled in one go.
            yield Place(f"{name}.self_attn.q_norm.weight", layer.qk_norm[: a.heads], a.head_dim, (a.head_dim,))
            yield Place(f"{name}.self_attn.k_norm.weight", layer.qk_norm[a.heads :], a.head_dim, (a.head_dim,))
        yield Place(f"{name}.self_attn.o_proj.weight", layer.output)
        yield Place(f"{name}.post_attention_layernorm.weight", layer.mlp_norm)
        yield Place(f"{name}.mlp.gate_proj.weight", layer.gate_up[: a.intermediate])
        yield Place(f"{name}.mlp.up_proj.weight", layer.gate_up[a.intermediate :])
        yield Place(f"{name}.mlp.down_proj.weight", layer.down)

    def _qkv_places(self, name: str, kind: str, into: torch.Tensor) -> Iterator[Place]:
        a = self.architecture
        query, key, value = torch.split_with_sizes(into, [h * a.head_dim for h in (a.heads, a.kv_heads, a.kv_heads)])
        yield Place(f"{name}.q_proj.{kind}", query, a.head_dim)
        yield Place(f"{name}.k_proj.{kind}", key, a.head_dim)
        yield Place(f"{name}.v_proj.{kind}", value)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a Hugging Face tensor belongs among the fused ones."""

    name: str
    into: torch.Tensor
    paired: int = 0
    """The size of a head, if the rows of each are reordered."""
    shape: tuple[int, ...] | None = None
    """Of the Hugging Face tensor, if it is repeated to fill the place."""

    def fill(self, tensor: Any) -> None:
        source, shape = torch.as_tensor(tensor), self.shape or tuple(self.into.shape)
        if tuple(source.shape) != shape:
            raise ModelError(f"{self.name!r} has shape {tuple(source.shape)}, but the model's config says {shape}")
        self.into.copy_(_paired(source, self.paired) if self.paired else source)


def _paired(source: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows (j, j + head_dim / 2) of every head side by side."""
    halves = source.reshape(-1, 2, head_dim // 2, *source.shape[1:])
    return halves.transpose(1, 2).reshape(source.shape)
