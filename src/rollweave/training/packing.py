"""Packs a batch of trajectories into tensors: a trajectory is one row, however many turns it has.

All tokens of a row go through the model once; the loss is computed at its sampled tokens only. The data of the sampled
tokens is flat, with one entry per token, and (row, column) gives each token's place in the padded micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollweave.errors import UntrainableBatch
from rollweave.policies.forward import fill_rows, pad_rows
from rollweave.trajectory import Batch, Logprobs, Span, TokenIds, Trajectory
from rollweave.versions import Version


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


def micro_batches(rows: Sequence[PackedRow], budget: int) -> list[MicroBatch]:
    """Divide rows into passes of at most `budget` padded tokens."""
    plan = fill_rows([len(row.tokens) for row in rows], budget)
    return [_micro_batch([rows[i] for i in indices]) for indices in plan]


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
        versions=np.repeat(np.array([Version(span.version or 0).number for _, _, span in sampled]), lengths),
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


def _micro_batch(rows: list[PackedRow]) -> MicroBatch:
    counts = torch.tensor([len(row.columns) for row in rows])

    def flat(name: str, dtype: type[np.generic] = np.float32) -> Tensor:
        return torch.from_numpy(np.concatenate([np.asarray(getattr(row, name), dtype) for row in rows]))

    def known(name: str) -> Tensor | None:
        return None if any(getattr(row, name) is None for row in rows) else flat(name)

    firsts = torch.tensor([0, *accumulate(int(row.segments[-1]) + 1 for row in rows)][:-1])
    return MicroBatch(
        members=rows,
        tokens=pad_rows([row.tokens for row in rows]),
        rows=torch.arange(len(rows)).repeat_interleave(counts),
        columns=flat("columns", np.int64),
        behaviour=flat("behaviour"),
        temperature=flat("temperature"),
        versions=flat("versions", np.int64),
        segments=flat("segments", np.int64) + firsts.repeat_interleave(counts),
        advantage=flat("advantage"),
        weight=torch.tensor([row.weight for row in rows], dtype=torch.float32).repeat_interleave(counts),
        before=known("before"),
        values=known("values"),
        returns=known("returns"),
    )
