"""Packs a batch of trajectories into tensors: a trajectory is one row, however many turns it has.

All tokens of a row go through the model once; the loss is computed at its sampled tokens only. The data of the sampled
tokens is flat, with one entry per token, and (row, column) gives each token's place in the padded micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from rollweave.errors import UntrainableBatch
from rollweave.policies.forward import fill_rows, pad_rows
from rollweave.trajectory import Batch, Span, Trajectory, Transform


@dataclass(slots=True)
class PackedRow:
    """One trajectory, ready to be packed: all its tokens, and the data of the sampled ones."""

    tokens: list[int]
    group: int
    columns: list[int] = field(default_factory=list)
    behaviour: list[float] = field(default_factory=list)
    temperature: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    """The segment of each token, from 0. A segment is the tokens of one answer that one version drew."""
    advantage: list[float] = field(default_factory=list)
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
    """The tensors of one forward and backward pass. `tokens` is padded; all others have one entry per sampled token."""

    members: list[PackedRow]
    tokens: Tensor
    rows: Tensor
    columns: Tensor
    behaviour: Tensor
    temperature: Tensor
    versions: Tensor
    segments: Tensor
    advantage: Tensor
    weight: Tensor
    before: Tensor | None
    values: Tensor | None
    returns: Tensor | None


def rows_of(batch: Batch) -> list[PackedRow]:
    """Make the rows of the batch's trajectories in canonical order, still without advantages."""
    return [_row(trajectory) for trajectory in batch.trajectories()]


def micro_batches(rows: Sequence[PackedRow], weights: Sequence[float], budget: int) -> list[MicroBatch]:
    """Divide rows into passes of at most `budget` padded tokens; `weights` has each row's weight per token."""
    plan = fill_rows([len(row.tokens) for row in rows], budget)
    return [_micro_batch([rows[i] for i in indices], [weights[i] for i in indices]) for indices in plan]


def _row(trajectory: Trajectory) -> PackedRow:
    row = PackedRow([], trajectory.group)
    last: tuple[int, int] | None = None
    for number, turn in enumerate(trajectory.turns):
        row.tokens.extend(turn.observation.tokens)
        for span in turn.answer:
            if span.version is not None and span.tokens:
                if not row.tokens:
                    raise UntrainableBatch(
                        f"trajectory {trajectory.id} begins with a sampled token: nothing predicts it"
                    )
                _append(row, span, span.version, starts=(number, span.version) != last)
                last = number, span.version
            row.tokens.extend(span.tokens)
    return row


def _append(row: PackedRow, span: Span, version: int, *, starts: bool) -> None:
    """Add the data of a sampled span's tokens to the row. `starts` says whether the span starts a new segment."""
    length = len(span.tokens)
    logprobs, temperature = _comparable(span)
    segment = (row.segments[-1] + starts) if row.segments else 0
    row.columns.extend(range(len(row.tokens), len(row.tokens) + length))
    row.behaviour.extend(logprobs)
    row.temperature.extend([temperature] * length)
    row.versions.extend([version] * length)
    row.segments.extend([segment] * length)


def _comparable(span: Span) -> tuple[list[float], float]:
    """The engine's log-probs with which the trainer can compare its own, and their temperature (see `losses`)."""
    assert span.logprobs is not None and span.raw_logprobs is not None and span.transform is not None  # Batch.check
    if cuts_support(span.transform):
        return span.raw_logprobs, 1.0
    return span.logprobs, span.transform.temperature


def cuts_support(transform: Transform) -> bool:
    """Whether some tokens could not be drawn at all, so that the distribution of the draw is not the policy's."""
    return transform.greedy or transform.top_p < 1.0 or transform.top_k > 0


def _micro_batch(rows: list[PackedRow], weights: list[float]) -> MicroBatch:
    counts = torch.tensor([len(row.columns) for row in rows])

    def flat(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor([value for row in rows for value in getattr(row, name)], dtype=dtype)

    def known(name: str) -> Tensor | None:
        return None if any(getattr(row, name) is None for row in rows) else flat(name)

    firsts = torch.tensor([0, *accumulate(row.segments[-1] + 1 for row in rows)][:-1])
    return MicroBatch(
        members=rows,
        tokens=pad_rows([row.tokens for row in rows]),
        rows=torch.arange(len(rows)).repeat_interleave(counts),
        columns=flat("columns", torch.long),
        behaviour=flat("behaviour"),
        temperature=flat("temperature"),
        versions=flat("versions", torch.long),
        segments=flat("segments", torch.long) + firsts.repeat_interleave(counts),
        advantage=flat("advantage"),
        weight=torch.tensor(weights, dtype=torch.float32).repeat_interleave(counts),
        before=known("before"),
        values=known("values"),
        returns=known("returns"),
    )
