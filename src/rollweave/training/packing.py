"""Packs a batch of trajectories into tensors: a trajectory is one row, however many turns it has.

All tokens of a row go through the model once; the loss is computed at its sampled tokens only. The data of the sampled
tokens is flat, with one entry per token, and (row, column) gives each token's place in the padded micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollweave.crossing import up
from rollweave.errors import UntrainableBatch
from rollweave.policies.forward import fill_rows, pad_rows
from rollweave.trajectory import Batch, Logprobs, Span, TokenIds, Trajectory

INDEX = np.dtype(np.int64)


@dataclass(slots=True)
class PackedRow:
    """One trajectory, ready to be packed: all its tokens, and the data of the sampled ones."""

    tokens: TokenIds
    group: int
    columns: NDArray[np.int64]
    behaviour: Logprobs
    temperature: NDArray[np.float32]
    versions: NDArray[np.int64]
    segments: NDArray[np.int64]
    """The segment of each token, from 0. A segment is the tokens of one answer that one version drew."""
    advantage: list[float] = field(default_factory=list)
    weight: float = 0.0
    """The weight of each of its sampled tokens in the loss of the mini-batch."""
    before: list[float] | None = None
    """The trainer's own log-probs before the step, if the loss or the mismatch correction needs them."""
    values: list[float] | None = None
    """The value head's values before the step, if there is a head; then `returns` holds the returns to train it on."""
    returns: list[float] | None = None

    @property
    def idle(self) -> bool:
        """Whether all advantages are 0, so that nothing can be learned from the row."""
        return not any(self.advantage)


@dataclass(slots=True)
class MicroBatch:
    """What one forward and backward pass works on. `tokens` is padded; the others have one entry per sampled token."""

    members: list[PackedRow]
    tokens: Tensor
    rows: Tensor
    columns: Tensor
    behaviour: Tensor
    temperature: Tensor
    versions: NDArray[np.int64]
    """Not on the device: only counts need them."""
    segments: Tensor
    advantage: Tensor
    weight: Tensor
    before: Tensor | None
    values: Tensor | None
    returns: Tensor | None


def rows_of(batch: Batch) -> list[PackedRow]:
    """Make the rows of the batch's trajectories in canonical order, still without advantages."""
    return [_row(trajectory) for trajectory in batch.trajectories()]


def micro_batches(
    rows: Sequence[PackedRow], budget: int, device: torch.device, floats: torch.dtype = torch.float32
) -> list[MicroBatch]:
    """Divide rows into passes of at most `budget` padded tokens, on the device.

    `floats`: what log-probs and losses are computed in.
    """
    plan = fill_rows([len(row.tokens) for row in rows], budget)
    kind = np.dtype(str(floats).removeprefix("torch."))
    return [_micro_batch([rows[i] for i in indices], device, kind) for indices in plan]


def _row(trajectory: Trajectory) -> PackedRow:
    sampled: list[tuple[int, int, Span]] = []  # the number of the turn, the place of the first token, the span
    end = 0
    for number, turn in enumerate(trajectory.turns):
        end += len(turn.observation.tokens)
        for span in turn.answer:
            if span.sampled and len(span.tokens):
                if not end:
                    raise UntrainableBatch(
                        f"trajectory {trajectory.id} begins with a sampled token: nothing predicts it"
                    )
                sampled.append((number, end, span))
            end += len(span.tokens)
    lengths = [len(span.tokens) for _, _, span in sampled]
    comparable = [_comparable(span) for _, _, span in sampled]
    segments = _segments([(number, span.version) for number, _, span in sampled])
    return PackedRow(
        tokens=trajectory.tokens(),
        group=trajectory.group,
        columns=np.concatenate([np.arange(start, start + len(span.tokens)) for _, start, span in sampled]),
        behaviour=np.concatenate([logprobs for logprobs, _ in comparable]),
        temperature=np.repeat(np.array([heat for _, heat in comparable], np.float32), lengths),
        versions=np.repeat(np.array([span.version for _, _, span in sampled]), lengths),
        segments=np.repeat(np.array(segments), lengths),
    )


def _segments(drawn: Sequence[tuple[int, int | None]]) -> list[int]:
    """The segment of each span, given its turn and version: a span that was cut is still one segment."""
    return list(accumulate((one != other for one, other in pairwise(drawn)), initial=0))


def _comparable(span: Span) -> tuple[Logprobs, float]:
    """The engine's log-probs with which the trainer can compare its own, and their temperature (see `losses`)."""
    transform = span.transform
    assert span.logprobs is not None and span.raw_logprobs is not None and transform is not None  # Batch.check
    if transform.greedy or transform.top_p < 1.0 or transform.top_k > 0:  # some tokens could not be drawn at all
        return span.raw_logprobs, 1.0
    return span.logprobs, transform.temperature


def _micro_batch(rows: list[PackedRow], device: torch.device, floats: np.dtype[Any]) -> MicroBatch:
    counts = [len(row.columns) for row in rows]
    firsts = [0, *accumulate(int(row.segments[-1]) + 1 for row in rows)][:-1]
    known = [name for name in ("before", "values", "returns") if all(getattr(row, name) is not None for row in rows)]

    def flat(name: str, dtype: np.dtype[Any] = floats) -> NDArray[Any]:
        return np.concatenate([np.asarray(getattr(row, name), dtype) for row in rows])

    arrays = {
        "tokens": pad_rows([row.tokens for row in rows]),
        "rows": np.repeat(np.arange(len(rows)), counts),
        "columns": flat("columns", INDEX),
        "behaviour": flat("behaviour"),
        "temperature": flat("temperature"),
        "segments": flat("segments", INDEX) + np.repeat(np.array(firsts), counts),
        "advantage": flat("advantage"),
        "weight": np.repeat(np.array([row.weight for row in rows], floats), counts),
        **{name: flat(name) for name in known},
    }
    there = dict(zip(arrays, up(device, *arrays.values()), strict=True))
    return MicroBatch(
        members=rows,
        versions=flat("versions", INDEX),
        before=there.pop("before", None),
        values=there.pop("values", None),
        returns=there.pop("returns", None),
        **there,
    )
