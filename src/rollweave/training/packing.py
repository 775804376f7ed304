"""From a batch of trajectories to tensors: a trajectory is one row, however many turns it has.

A row's given and sampled tokens go through the model once; the loss is taken at its sampled tokens only. Their data
lie flat, one entry per sampled token, with (row, column) saying where each stands in the padded micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rollweave.errors import UntrainableBatch
from rollweave.policies.forward import fill_rows, pad_rows
from rollweave.trajectory import Batch, Span, Trajectory, Transform


@dataclass(slots=True)
class Row:
    """One trajectory, ready to be packed: all its tokens, and the data of the sampled ones."""

    tokens: list[int]
    group: int
    advantage: float
    columns: list[int] = field(default_factory=list)
    behaviour: list[float] = field(default_factory=list)
    temperature: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class MicroBatch:
    """One forward and backward pass. `tokens` is padded; everything else is flat, per sampled token."""

    tokens: Tensor
    rows: Tensor
    columns: Tensor
    behaviour: Tensor
    temperature: Tensor
    versions: Tensor
    advantage: Tensor
    weight: Tensor
    before: Tensor | None = None
    """The trainer's own log-probs before the step; None: those of the pass itself, nothing having moved yet."""


def rows_of(batch: Batch, advantages: Sequence[float]) -> list[Row]:
    """The batch's trajectories in canonical order."""
    return [_row(trajectory, a) for trajectory, a in zip(batch.trajectories(), advantages, strict=True)]


def micro_batches(rows: Sequence[Row], weights: Sequence[float], budget: int) -> list[MicroBatch]:
    """Cut rows into passes of at most `budget` padded tokens; `weights` holds each row's weight per token."""
    plan = fill_rows([len(row.tokens) for row in rows], budget)
    return [_micro_batch([rows[i] for i in indices], [weights[i] for i in indices]) for indices in plan]


def _row(trajectory: Trajectory, advantage: float) -> Row:
    row = Row([], trajectory.group, advantage)
    for span in trajectory.spans():
        if span.version is not None:
            if not row.tokens:
                raise UntrainableBatch(f"trajectory {trajectory.id} begins with a sampled token: nothing predicts it")
            row.columns.extend(range(len(row.tokens), len(row.tokens) + len(span.tokens)))
            logprobs, temperature = _comparable(span)
            row.behaviour.extend(logprobs)
            row.temperature.extend([temperature] * len(span.tokens))
            row.versions.extend([span.version] * len(span.tokens))
        row.tokens.extend(span.tokens)
    return row


def _comparable(span: Span) -> tuple[list[float], float]:
    """The behaviour's log-probs the trainer can compare its own with, and at which temperature (see `losses`)."""
    assert span.logprobs is not None and span.raw_logprobs is not None and span.transform is not None  # Batch.check
    if cuts_support(span.transform):
        return span.raw_logprobs, 1.0
    return span.logprobs, span.transform.temperature


def cuts_support(transform: Transform) -> bool:
    """Whether some tokens could not be drawn at all, so that the drawn distribution is not the policy's own."""
    return transform.greedy or transform.top_p < 1.0 or transform.top_k > 0


def _micro_batch(rows: list[Row], weights: list[float]) -> MicroBatch:
    counts = torch.tensor([len(row.columns) for row in rows])

    def flat(values: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
        return torch.tensor([value for row in values for value in row], dtype=dtype)

    def spread(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(counts)

    return MicroBatch(
        tokens=pad_rows([row.tokens for row in rows]),
        rows=torch.arange(len(rows)).repeat_interleave(counts),
        columns=flat([row.columns for row in rows], torch.long),
        behaviour=flat([row.behaviour for row in rows], torch.float32),
        temperature=flat([row.temperature for row in rows], torch.float32),
        versions=flat([row.versions for row in rows], torch.long),
        advantage=spread([row.advantage for row in rows]),
        weight=spread(weights),
    )
