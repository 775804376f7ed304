"""The forward pass over a flat list of tokens.

Decodes and pieces of prompts of many sequences are one matrix [tokens, hidden]; only attention knows which token
belongs to whom. Logits are computed for the rows that are sampled and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from rollweave.engines.torch.architecture import Architecture
from rollweave.engines.torch.attention import Chunk, Plan, attend, plan
from rollweave.engines.torch.weights import FusedWeights, LayerWeights


class KVCache:
    """Keys and values of all slots: per layer [slots, 2 * kv_heads, context, head_dim]."""

    def __init__(self, architecture: Architecture, slots: int, context: int) -> None:
        a = architecture
        # Zeros, not empty: what a mask hides must still be finite. The pages are only touched when used.
        self.layers = [torch.zeros(slots, 2 * a.kv_heads, context, a.head_dim) for _ in range(a.layers)]
        self.token_bytes = 2 * a.kv_heads * a.head_dim * 4


@dataclass(frozen=True, slots=True)
class Inputs:
    """The new tokens of one step, flat, and where each belongs."""

    tokens: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    sampled: torch.Tensor
    """The rows whose logits are wanted."""
    plan: Plan

    @classmethod
    def of(cls, chunks: Sequence[Chunk], tokens: list[int], sampled: list[int], token_bytes: int) -> Inputs:
        return cls(
            tokens=torch.tensor(tokens),
            slots=torch.tensor([c.slot for c in chunks for _ in range(c.count)]),
            positions=torch.tensor([p for c in chunks for p in range(c.start, c.end)]),
            sampled=torch.tensor(sampled, dtype=torch.long),
            plan=plan(chunks, token_bytes),
        )


def forward(weights: FusedWeights, cache: KVCache, rope: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Write the new tokens' keys and values into the cache; returns logits [sampled, vocabulary]."""
    a = weights.architecture
    rotations = rope[inputs.positions][:, None]
    x = embedding(inputs.tokens, weights.embedding)
    for layer, kv in zip(weights.layers, cache.layers, strict=True):
        h = rms_norm(x, (a.hidden,), layer.input_norm, a.eps)
        x = torch.addmm(x, _attention(a, layer, h, kv, rotations, inputs), layer.output.t())
        h = rms_norm(x, (a.hidden,), layer.mlp_norm, a.eps)
        gate, up = linear(h, layer.gate_up).chunk(2, dim=1)
        x = torch.addmm(x, silu(gate).mul_(up), layer.down.t())
    x = rms_norm(x[inputs.sampled], (a.hidden,), weights.final_norm, a.eps)
    return linear(x, weights.head)


def _attention(
    a: Architecture, layer: LayerWeights, h: torch.Tensor, kv: torch.Tensor, rotations: torch.Tensor, inputs: Inputs
) -> torch.Tensor:
    qkv = linear(h, layer.qkv, layer.qkv_bias).view(len(h), -1, a.head_dim)
    qk = qkv[:, : a.heads + a.kv_heads]
    if layer.qk_norm is not None:
        torch.mul(rms_norm(qk, (a.head_dim,), None, a.eps), layer.qk_norm, out=qk)
    torch.view_as_complex(qk.view(*qk.shape[:2], -1, 2)).mul_(rotations)
    kv[inputs.slots, :, inputs.positions] = qkv[:, a.heads :]
    return attend(qkv[:, : a.heads], kv, inputs.plan)
