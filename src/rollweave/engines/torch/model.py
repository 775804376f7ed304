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
from torch import Tensor
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
    rows: Tensor | None
    """Each decode's place in the range; None: every slot of the range decodes."""
    mask: Tensor | None
    """[range, 1, 1, length], minus infinity beyond a sequence's end; None: all are as long as the longest."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Where the new tokens of one step belong and how they attend; made once, used by every layer."""

    slots: Tensor
    positions: Tensor
    ranges: list[SlotRange]
    pieces: list[tuple[Chunk, Tensor | None]]
    """Chunks of several tokens, each with its mask."""


def plan(chunks: Sequence[Chunk], token_bytes: int) -> AttentionSpec:
    """Chunks come in the order of their rows: those of one token first, by slot. `token_bytes`: per layer."""
    decodes = [c for c in chunks if c.count == 1]
    return AttentionSpec(
        slots=torch.tensor([c.slot for c in chunks for _ in range(c.count)]),
        positions=torch.tensor([p for c in chunks for p in range(c.start, c.end)]),
        ranges=[_range(group) for group in _join(decodes, token_bytes)],
        pieces=[(c, _causal_mask(c)) for c in chunks[len(decodes) :]],
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
    rows = torch.tensor([c.slot - first for c in group])
    lengths = torch.ones(span, dtype=torch.long)  # a slot that does not decode may see one key: no NaN, no cost
    lengths[rows] = torch.tensor([c.end for c in group])
    hidden = torch.arange(length) >= lengths[:, None]
    mask = torch.zeros(span, length).masked_fill_(hidden, float("-inf"))
    return SlotRange(first, last, length, len(group), rows if span != len(group) else None, mask[:, None, None])


def _causal_mask(chunk: Chunk) -> Tensor | None:
    """Every new token sees the past and itself; at the start of a sequence the kernel knows that by itself."""
    if chunk.start == 0:
        return None
    return torch.full((chunk.count, chunk.end), float("-inf")).triu_(chunk.start + 1)


def attend(query: Tensor, kv: Tensor, spec: AttentionSpec) -> Tensor:
    """Query [tokens, heads, head_dim] over one layer's cache; returns [tokens, heads * head_dim]."""
    parts = []
    row = 0
    for group in spec.ranges:
        parts.append(_attend_range(query[row : row + group.decodes], kv, group))
        row += group.decodes
    for chunk, mask in spec.pieces:
        parts.append(_attend_piece(query[row : row + chunk.count], kv, chunk, mask))
        row += chunk.count
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_range(query: Tensor, kv: Tensor, group: SlotRange) -> Tensor:
    """One token per slot: the heads that share keys become the query's length, so keys are read once."""
    keys, values = kv[group.first : group.last + 1, :, : group.length].chunk(2, dim=1)
    if group.rows is not None:
        query = query.new_zeros(len(keys), *query.shape[1:]).index_copy_(0, group.rows, query)
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[2])
    answer = scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask).flatten(1)
    return answer if group.rows is None else answer[group.rows]


def _attend_piece(query: Tensor, kv: Tensor, chunk: Chunk, mask: Tensor | None) -> Tensor:
    keys, values = kv[chunk.slot : chunk.slot + 1, :, : chunk.end].chunk(2, dim=1)
    answer = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return answer[0].transpose(0, 1).flatten(1)


def kv_cache(a: Architecture, slots: int, context: int) -> list[Tensor]:
    """Allocate the keys and values of all slots, by layer."""
    # Zeros, not empty: what a mask hides must still be finite. The pages are only touched when used.
    return [torch.zeros(slots, 2 * a.kv_heads, context, a.head_dim) for _ in range(a.layers)]


def forward(
    weights: FusedWeights, cache: list[Tensor], rope: Tensor, chunks: Sequence[Chunk], tokens: TokenIds, rows: list[int]
) -> Tensor:
    """Write the keys and values of the chunks' `tokens` into the cache; returns the logits of `rows`."""
    a = weights.architecture
    spec = plan(chunks, a.kv_bytes)
    rotations = rope[spec.positions][:, None]
    x = embedding(torch.from_numpy(tokens.astype(np.int64)), weights.embedding)
    for layer, kv in zip(weights.layers, cache, strict=True):
        h = rms_norm(x, (a.hidden,), layer.input_norm, a.eps)
        x = torch.addmm(x, _attention(a, layer, h, kv, rotations, spec), layer.output.t())
        h = rms_norm(x, (a.hidden,), layer.mlp_norm, a.eps)
        gate, up = linear(h, layer.gate_up).chunk(2, dim=1)
        x = torch.addmm(x, silu(gate).mul_(up), layer.down.t())
    x = rms_norm(x[torch.tensor(rows, dtype=torch.long)], (a.hidden,), weights.final_norm, a.eps)
    return linear(x, weights.head)


def _attention(
    a: Architecture, layer: LayerWeights, h: Tensor, kv: Tensor, rotations: Tensor, spec: AttentionSpec
) -> Tensor:
    qkv = linear(h, layer.qkv, layer.qkv_bias).view(len(h), -1, a.head_dim)
    qk = qkv[:, : a.heads + a.kv_heads]
    if layer.qk_norm is not None:
        torch.mul(rms_norm(qk, (a.head_dim,), None, a.eps), layer.qk_norm, out=qk)
    torch.view_as_complex(qk.view(*qk.shape[:2], -1, 2)).mul_(rotations)
    kv[spec.slots, :, spec.positions] = qkv[:, a.heads :]
    return attend(qkv[:, : a.heads], kv, spec)
