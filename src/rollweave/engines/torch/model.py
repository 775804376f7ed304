"""The forward pass over a flat list of tokens.

Decodes and pieces of prompts of many sequences are one matrix [tokens, hidden]; only attention knows which token
belongs to whom. Logits are computed for the rows that are sampled and no others.

Attention of a step's new tokens over the slots they belong to.

The keys and values of one layer are a tensor [slots, 2 * kv_heads, context, head_dim] (keys, then values) that is
never copied: attention reads views of it. `attend` is the whole interface between the model and this file, and the
place for a faster kernel.

Decoding is bound by memory traffic, so the question is only how to read few bytes in few calls. One call per
sequence reads exactly what is needed but pays for the call; one call over a range of slots, padded to the longest,
reads too much but pays once. `plan` walks along the slots and joins neighbours while that is the cheaper way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from rollweave.engines.torch.weights import Architecture, FusedWeights, LayerWeights
from rollweave.trajectory import TokenIds

CALL_BYTES = 120_000
"""What a call costs, as the cache bytes that could be read in that time (15 µs at 8 GB/s, measured)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` new tokens of the sequence in `slot`, after `start` tokens that are already there."""

    slot: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Decodes that one call computes, over the slots first..last and padded to the longest."""

    first: int
    last: int
    length: int
    decodes: int
    rows: torch.Tensor | None
    """Each decode's place in the range; None: every slot of the range decodes."""
    mask: torch.Tensor | None
    """[range, 1, 1, length], minus infinity beyond a sequence's end; None: all are as long as the longest."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one step attends; made once, used by every layer."""

    ranges: list[SlotRange]
    pieces: list[tuple[Chunk, torch.Tensor | None]]
    """Chunks of several tokens, each with its mask."""


def plan(chunks: Sequence[Chunk], token_bytes: int) -> AttentionSpec:
    """Chunks come in the order of their rows: those of one token first, by slot. `token_bytes`: per layer."""
    decodes = [c for c in chunks if c.count == 1]
    ranges = [_range(group) for group in _join(decodes, token_bytes)]
    return AttentionSpec(ranges, [(c, _causal_mask(c)) for c in chunks[len(decodes) :]])


def _join(decodes: Sequence[Chunk], token_bytes: int) -> list[list[Chunk]]:
    """Neighbouring slots in one group while the padding costs less than the call it saves."""
    groups: list[list[Chunk]] = []
    first = longest = cost = 0
    for chunk in decodes:
        joined_longest = max(longest, chunk.end)
        joined = (chunk.slot - first + 1) * joined_longest * token_bytes + CALL_BYTES
        alone = chunk.end * token_bytes + CALL_BYTES
        if groups and joined <= cost + alone:
            groups[-1].append(chunk)
            longest, cost = joined_longest, joined
        else:
            groups.append([chunk])
            first, longest, cost = chunk.slot, chunk.end, alone
    return groups


def _range(group: list[Chunk]) -> SlotRange:
    first, last, length = group[0].slot, group[-1].slot, max(c.end for c in group)
    if len(group) == 1:
        return SlotRange(first, last, length, 1, None, None)
    span = last - first + 1
    rows = torch.tensor([c.slot - first for c in group])
    lengths = torch.ones(span, dtype=torch.long)  # a slot that does not decode may see one key: no NaN, no cost
    lengths[rows] = torch.tensor([c.end for c in group])
    hidden = torch.arange(length) >= lengths[:, None]
    mask = torch.zeros(span, length).masked_fill_(hidden, float("-inf"))
    return SlotRange(first, last, length, len(group), rows if span != len(group) else None, mask[:, None, None])


def _causal_mask(chunk: Chunk) -> torch.Tensor | None:
    """Every new token sees the past and itself; at the start of a sequence the kernel knows that by itself."""
    if chunk.start == 0:
        return None
    return torch.full((chunk.count, chunk.end), float("-inf")).triu_(chunk.start + 1)


def attend(query: torch.Tensor, kv: torch.Tensor, plan: AttentionSpec) -> torch.Tensor:
    """Query [tokens, heads, head_dim] over one layer's cache; returns [tokens, heads * head_dim]."""
    parts = []
    row = 0
    for group in plan.ranges:
        parts.append(_attend_range(query[row : row + group.decodes], kv, group))
        row += group.decodes
    for chunk, mask in plan.pieces:
        parts.append(_attend_piece(query[row : row + chunk.count], kv, chunk, mask))
        row += chunk.count
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_range(query: torch.Tensor, kv: torch.Tensor, group: SlotRange) -> torch.Tensor:
    """One token per slot: the heads that share keys become the query's length, so keys are read once."""
    keys, values = kv[group.first : group.last + 1, :, : group.length].chunk(2, dim=1)
    if group.rows is not None:
        query = query.new_zeros(len(keys), *query.shape[1:]).index_copy_(0, group.rows, query)
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[2])
    answer = scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask).flatten(1)
    return answer if group.rows is None else answer[group.rows]


def _attend_piece(query: torch.Tensor, kv: torch.Tensor, chunk: Chunk, mask: torch.Tensor | None) -> torch.Tensor:
    keys, values = kv[chunk.slot : chunk.slot + 1, :, : chunk.end].chunk(2, dim=1)
    answer = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return answer[0].transpose(0, 1).flatten(1)


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
    plan: AttentionSpec

    @classmethod
    def of(cls, chunks: Sequence[Chunk], tokens: TokenIds, sampled: list[int], token_bytes: int) -> Inputs:
        return cls(
            tokens=torch.from_numpy(tokens.astype(np.int64)),
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
