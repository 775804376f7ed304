"""The forward pass over a flat list of tokens, and attention over the slots of the KV cache that they belong to.

Decodes and pieces of prompts of many sequences are one matrix [tokens, hidden]; only attention distinguishes the
sequences. Logits are computed only for the rows that are sampled.

The keys and values of one layer are a tensor [slots, 2 * kv_heads, context, head_dim] (keys, then values) that is
never copied: attention reads views of it. A faster kernel would replace `attend`.

Decoding is bound by memory traffic, so it should read few bytes in few calls. One call per sequence reads exactly what
is needed but pays for the call; one call over a range of slots, padded to the longest, reads too much but pays once.
`plan` walks along the slots and joins neighbours while that is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from rollweave.crossing import up
from rollweave.engines.torch.weights import Architecture, FusedWeights, LayerWeights
from rollweave.trajectory import TokenIds

Indices = NDArray[np.int64]

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
    rows: Indices | None
    """Each decode's place in the range; None: every slot of the range decodes."""
    lengths: Indices | None
    """The keys that each slot of the range may see; None: there is one slot, and it sees all."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where the new tokens of one step belong and how they attend."""

    slots: Indices
    positions: Indices
    ranges: list[SlotRange]
    pieces: list[Chunk]
    """Chunks of several tokens."""


def plan(chunks: Sequence[Chunk], token_bytes: int) -> AttentionPlan:
    """Chunks come in the order of their rows: those of one token first, by slot. `token_bytes`: per layer."""
    decodes = [c for c in chunks if c.count == 1]
    return AttentionPlan(
        slots=np.array([c.slot for c in chunks for _ in range(c.count)], np.int64),
        positions=np.array([p for c in chunks for p in range(c.start, c.end)], np.int64),
        ranges=[_range(group) for group in _join(decodes, token_bytes)],
        pieces=list(chunks[len(decodes) :]),
    )


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
    rows = np.array([c.slot - first for c in group], np.int64)
    lengths = np.ones(span, np.int64)  # a slot that does not decode may see one key: no NaN, no cost
    lengths[rows] = [c.end for c in group]
    return SlotRange(first, last, length, len(group), rows if span != len(group) else None, lengths)


# ---------------------------------------------------------------------------------------------------- on the device


@dataclass(frozen=True, slots=True)
class RangeCall:
    range: SlotRange
    rows: Tensor | None
    mask: Tensor | None
    """[range, 1, 1, length], minus infinity beyond a sequence's end."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The plan on the device; made once, used by every layer."""

    slots: Tensor
    positions: Tensor
    ranges: list[RangeCall]
    pieces: list[tuple[Chunk, Tensor | None]]
    """Each with its mask."""


def place(plan: AttentionPlan, tokens: TokenIds, rows: list[int], like: Tensor) -> tuple[AttentionSpec, Tensor, Tensor]:
    """Bring what a step needs to the device of `like`, in one crossing: the plan, the tokens, the rows to sample."""
    numbers = [tokens.astype(np.int64), np.array(rows, np.int64), plan.slots, plan.positions]
    numbers += [array for one in plan.ranges for array in (one.rows, one.lengths) if array is not None]
    there = iter(up(like.device, *numbers))
    placed_tokens, placed_rows, slots, positions = next(there), next(there), next(there), next(there)
    ranges = []
    for one in plan.ranges:
        index = None if one.rows is None else next(there)
        ranges.append(RangeCall(one, index, None if one.lengths is None else _mask(next(there), one.length, like)))
    pieces = [(chunk, _causal_mask(chunk, like)) for chunk in plan.pieces]
    return AttentionSpec(slots, positions, ranges, pieces), placed_tokens, placed_rows


def _mask(lengths: Tensor, length: int, like: Tensor) -> Tensor:
    hidden = torch.arange(length, device=like.device) >= lengths[:, None]
    return like.new_zeros(len(lengths), length).masked_fill_(hidden, float("-inf"))[:, None, None]


def _causal_mask(chunk: Chunk, like: Tensor) -> Tensor | None:
    """Every new token sees the past and itself; at the start of a sequence the kernel knows that by itself."""
    if chunk.start == 0:
        return None
    return like.new_full((chunk.count, chunk.end), float("-inf")).triu_(chunk.start + 1)


def attend(query: Tensor, kv: Tensor, spec: AttentionSpec) -> Tensor:
    """Query [tokens, heads, head_dim] over one layer's cache; returns [tokens, heads * head_dim]."""
    parts = []
    row = 0
    for call in spec.ranges:
        parts.append(_attend_range(query[row : row + call.range.decodes], kv, call))
        row += call.range.decodes
    for chunk, mask in spec.pieces:
        parts.append(_attend_piece(query[row : row + chunk.count], kv, chunk, mask))
        row += chunk.count
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_range(query: Tensor, kv: Tensor, call: RangeCall) -> Tensor:
    """One token per slot: the heads that share keys become the query's length, so keys are read once."""
    group = call.range
    keys, values = kv[group.first : group.last + 1, :, : group.length].chunk(2, dim=1)
    if call.rows is not None:
        query = query.new_zeros(len(keys), *query.shape[1:]).index_copy_(0, call.rows, query)
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[2])
    answer = scaled_dot_product_attention(grouped, keys, values, attn_mask=call.mask).flatten(1)
    return answer if call.rows is None else answer[call.rows]


def _attend_piece(query: Tensor, kv: Tensor, chunk: Chunk, mask: Tensor | None) -> Tensor:
    keys, values = kv[chunk.slot : chunk.slot + 1, :, : chunk.end].chunk(2, dim=1)
    answer = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return answer[0].transpose(0, 1).flatten(1)


def kv_cache(weights: FusedWeights, slots: int, context: int) -> list[Tensor]:
    """Allocate the keys and values of all slots, by layer."""
    a = weights.architecture
    # Zeros, not empty: what a mask hides must still be finite. The pages are only touched when used.
    return [weights.embedding.new_zeros(slots, 2 * a.kv_heads, context, a.head_dim) for _ in range(a.layers)]


def forward(
    weights: FusedWeights, cache: list[Tensor], rope: Tensor, chunks: Sequence[Chunk], tokens: TokenIds, rows: list[int]
) -> Tensor:
    """Write the keys and values of the chunks' `tokens` into the cache; returns the logits of `rows`, in float32."""
    a = weights.architecture
    spec, ids, sampled = place(plan(chunks, weights.kv_bytes), tokens, rows, weights.embedding)
    rotations = rope[spec.positions][:, None]
    x = embedding(ids, weights.embedding)
    for layer, kv in zip(weights.layers, cache, strict=True):
        h = rms_norm(x, (a.hidden,), layer.input_norm, a.eps)
        x = torch.addmm(x, _attention(a, layer, h, kv, rotations, spec), layer.output.t())
        h = rms_norm(x, (a.hidden,), layer.mlp_norm, a.eps)
        gate, value = linear(h, layer.gate_up).chunk(2, dim=1)
        x = torch.addmm(x, silu(gate).mul_(value), layer.down.t())
    x = rms_norm(x[sampled], (a.hidden,), weights.final_norm, a.eps)
    return linear(x, weights.head).float()


def _attention(
    a: Architecture, layer: LayerWeights, h: Tensor, kv: Tensor, rotations: Tensor, spec: AttentionSpec
) -> Tensor:
    qkv = linear(h, layer.qkv, layer.qkv_bias).view(len(h), -1, a.head_dim)
    qk = qkv[:, : a.heads + a.kv_heads]
    if layer.qk_norm is not None:
        torch.mul(rms_norm(qk, (a.head_dim,), None, a.eps), layer.qk_norm, out=qk)
    _rotate(qk, rotations)
    kv[spec.slots, :, spec.positions] = qkv[:, a.heads :]
    return attend(qkv[:, : a.heads], kv, spec)


def _rotate(qk: Tensor, rotations: Tensor) -> None:
    """In place. There are no complex numbers of two bfloat16: those are rotated as float32."""
    if qk.dtype is torch.float32:
        torch.view_as_complex(qk.view(*qk.shape[:2], -1, 2)).mul_(rotations)
    else:
        pairs = torch.view_as_complex(qk.float().view(*qk.shape[:2], -1, 2))
        qk.copy_(torch.view_as_real(pairs * rotations).flatten(2))
