"""Attention of a step's new tokens over the slots they belong to.

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

import torch
from torch.nn.functional import scaled_dot_product_attention

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
class Plan:
    """How one step attends; made once, used by every layer."""

    ranges: list[SlotRange]
    pieces: list[tuple[Chunk, torch.Tensor | None]]
    """Chunks of several tokens, each with its mask."""


def plan(chunks: Sequence[Chunk], token_bytes: int) -> Plan:
    """Chunks come in the order of their rows: those of one token first, by slot. `token_bytes`: per layer."""
    decodes = [c for c in chunks if c.count == 1]
    ranges = [_range(group) for group in _join(decodes, token_bytes)]
    return Plan(ranges, [(c, _causal_mask(c)) for c in chunks[len(decodes) :]])


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


def attend(query: torch.Tensor, kv: torch.Tensor, plan: Plan) -> torch.Tensor:
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
