"""Attention of a step's new tokens over the slots they belong to.

The keys and values of one layer are a tensor [slots, 2 * kv_heads, context, head_dim] (keys, then values) that is
never copied: attention reads views of it. `attend` is the whole interface between the model and this file, and the
place for a faster kernel.

Decoding is bound by memory traffic, so the question is only how to read few bytes in few calls. One call per
sequence reads exactly what is needed but pays for the call; one call over a range of slots, padded to the longest,
reads too much but pays once. `plan` estimates both and takes the cheaper.
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
    """Decodes computed together over the slots first..last."""

    first: int
    last: int
    length: int
    rows: torch.Tensor | None
    """Each decode's place in the range; None: every slot of the range decodes."""
    mask: torch.Tensor
    """[range, 1, 1, length], minus infinity beyond a sequence's end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one step attends; made once, used by every layer."""

    together: SlotRange | None
    decodes: int
    """The number of leading rows that `together` covers."""
    singles: list[Chunk]
    """The sequences that get a call each, in the order of their rows."""
    masks: list[torch.Tensor | None]


def plan(chunks: Sequence[Chunk], token_bytes: int) -> Plan:
    """Chunks come in the order of their rows: those of one token first, by slot. `token_bytes`: per layer."""
    decodes = [c for c in chunks if c.count == 1]
    together = _range(decodes, token_bytes)
    singles = list(chunks[len(decodes) :]) if together else list(chunks)
    return Plan(together, len(decodes) if together else 0, singles, [_mask(c) for c in singles])


def _range(decodes: Sequence[Chunk], token_bytes: int) -> SlotRange | None:
    if not decodes:
        return None
    first, last, length = decodes[0].slot, decodes[-1].slot, max(c.end for c in decodes)
    span = last - first + 1
    exact = sum(c.end for c in decodes) * token_bytes + len(decodes) * CALL_BYTES
    if span * length * token_bytes + CALL_BYTES > exact:
        return None
    rows = torch.tensor([c.slot - first for c in decodes])
    lengths = torch.ones(span, dtype=torch.long)  # a slot that does not decode may see one key: no NaN, no cost
    lengths[rows] = torch.tensor([c.end for c in decodes])
    hidden = torch.arange(length) >= lengths[:, None]
    mask = torch.zeros(span, length).masked_fill_(hidden, float("-inf"))
    return SlotRange(first, last, length, rows if span != len(decodes) else None, mask[:, None, None])


def _mask(chunk: Chunk) -> torch.Tensor | None:
    """Every new token sees the past and itself. Needs no mask at the start (causal) or for one token (all)."""
    if chunk.start == 0 or chunk.count == 1:
        return None
    return torch.full((chunk.count, chunk.end), float("-inf")).triu_(chunk.start + 1)


def attend(query: torch.Tensor, kv: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Query [tokens, heads, head_dim] over one layer's cache; returns [tokens, heads * head_dim]."""
    parts = []
    if plan.together is not None:
        parts.append(_attend_range(query[: plan.decodes], kv, plan.together))
    row = plan.decodes
    for chunk, mask in zip(plan.singles, plan.masks, strict=True):
        parts.append(_attend_one(query[row : row + chunk.count], kv, chunk, mask))
        row += chunk.count
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_range(query: torch.Tensor, kv: torch.Tensor, group: SlotRange) -> torch.Tensor:
    slots = kv[group.first : group.last + 1, :, : group.length]
    if group.rows is not None:
        query = query.new_zeros(len(slots), *query.shape[1:]).index_copy_(0, group.rows, query)
    answer = _folded(query, slots, group.mask)
    return answer if group.rows is None else answer[group.rows]


def _attend_one(query: torch.Tensor, kv: torch.Tensor, chunk: Chunk, mask: torch.Tensor | None) -> torch.Tensor:
    slot = kv[chunk.slot : chunk.slot + 1, :, : chunk.end]
    if chunk.count == 1:
        return _folded(query, slot, None)
    keys, values = slot.chunk(2, dim=1)
    answer = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return answer[0].transpose(0, 1).flatten(1)


def _folded(query: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """One token per slot: the heads that share keys become the query's length, so keys are read once."""
    keys, values = slots.chunk(2, dim=1)
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[2])
    return scaled_dot_product_attention(grouped, keys, values, attn_mask=mask).flatten(1)
