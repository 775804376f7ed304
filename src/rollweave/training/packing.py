"""Packs a batch of trajectories into tensors: a trajectory is one row, however many turns it has.

All tokens of a row go through the model once; the loss is computed at its sampled tokens only. The data of the sampled
tokens is flat, with one entry per token, and (line, column) gives each token's place in the micro-batch: a line is one
padded row, or, packed, several rows one after the other.

Several ranks divide the rows by their tokens. All of them make the same number of passes, because they gather and
reduce together; one that has no rows left makes a pass over a filler that weighs nothing.
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

from rollweave.crossing import CPU, up
from rollweave.errors import UntrainableBatch
from rollweave.policies.forward import fill_rows, pack_rows, pad_rows
from rollweave.trajectory import Batch, Logprobs, Span, TokenIds, Trajectory
from rollweave.versions import Version

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
    """The tensors of one forward and backward pass. All but the first two have one entry per sampled token."""

    members: list[PackedRow]
    """Empty: a filler, of which nothing is learned or recorded."""
    tokens: Tensor
    """Lines, padded."""
    positions: Tensor | None
    """The position of each of `tokens` in its own row; None: every line is one row."""
    rows: Tensor
    """The number of each token's row among the members."""
    lines: Tensor
    columns: Tensor
    behaviour: Tensor
    temperature: Tensor
    versions: NDArray[np.int64]
    """In main memory: only metrics need them."""
    segments: Tensor
    advantage: Tensor
    weight: Tensor
    before: Tensor | None
    values: Tensor | None
    returns: Tensor | None


def rows_of(batch: Batch) -> list[PackedRow]:
    """Make the rows of the batch's trajectories in canonical order, still without advantages."""
    return [_row(trajectory) for trajectory in batch.trajectories()]


def micro_batches(rows: Sequence[PackedRow], budget: int, packed: bool = False) -> list[MicroBatch]:
    """Divide rows into passes of at most `budget` tokens, padding included. `packed`: short rows share a line."""
    return [_micro_batch(lines) for lines in _plan(rows, budget, packed)]


def micro_batches_of_rank(
    rows: Sequence[PackedRow],
    budget: int,
    packed: bool,
    rank: int,
    ranks: int,
    device: torch.device = CPU,
    floats: torch.dtype = torch.float32,
) -> list[MicroBatch]:
    """The passes of one rank over its share of the rows; as many as every other rank makes.

    `floats`: what log-probs and losses are computed in.
    """
    plans = [_plan(share, budget, packed) for share in share_out(rows, ranks)]
    fillers = max(len(plan) for plan in plans) - len(plans[rank])
    passes = [*plans[rank], *[[[filler()]]] * fillers]
    made = [_micro_batch(lines, device, floats) for lines in passes]
    for micro in made[len(plans[rank]) :]:
        micro.members = []
    return made


def share_out(rows: Sequence[PackedRow], ranks: int) -> list[list[PackedRow]]:
    """Divide rows so that every rank has about as many tokens: the longest first, each to the rank with the fewest."""
    shares: list[list[PackedRow]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for row in sorted(rows, key=lambda row: -len(row.tokens)):
        rank = tokens.index(min(tokens))
        shares[rank].append(row)
        tokens[rank] += len(row.tokens)
    return shares


def filler() -> PackedRow:
    """The row of a pass that computes gradients of 0, for a rank that only keeps the others company."""
    zero = np.zeros(1, np.float32)
    return PackedRow(
        tokens=np.zeros(2, np.int32),
        group=0,
        columns=np.ones(1, np.int64),
        behaviour=zero,
        temperature=zero + 1.0,
        versions=np.zeros(1, np.int64),
        segments=np.zeros(1, np.int64),
        advantage=[0.0],
        before=[0.0],
        values=[0.0],
        returns=[0.0],
    )


def _plan(rows: Sequence[PackedRow], budget: int, packed: bool) -> list[list[list[PackedRow]]]:
    """Passes, each a list of lines, each a list of rows."""
    lengths = [len(row.tokens) for row in rows]
    if packed:
        return [[[rows[i] for i in line] for line in lines] for lines in pack_rows(lengths, budget)]
    return [[[rows[i]] for i in indices] for indices in fill_rows(lengths, budget)]


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


def _micro_batch(
    lines: list[list[PackedRow]], device: torch.device = CPU, floats: torch.dtype = torch.float32
) -> MicroBatch:
    rows = [row for line in lines for row in line]
    counts = [len(row.columns) for row in rows]
    starts = [start for line in lines for start in [0, *accumulate(len(row.tokens) for row in line)][:-1]]
    numbers = [number for number, line in enumerate(lines) for _ in line]
    firsts = [0, *accumulate(int(row.segments[-1]) + 1 for row in rows)][:-1]
    kind = np.dtype(str(floats).removeprefix("torch."))

    def flat(name: str, dtype: np.dtype[Any] = kind) -> NDArray[Any]:
        return np.concatenate([np.asarray(getattr(row, name), dtype) for row in rows])

    def repeated(values: Sequence[float], dtype: np.dtype[Any] = INDEX) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype), counts)

    arrays = {
        "tokens": pad_rows([np.concatenate([row.tokens for row in line]) for line in lines]),
        "rows": repeated(range(len(rows))),
        "lines": repeated(numbers),
        "columns": flat("columns", INDEX) + repeated(starts),
        "behaviour": flat("behaviour"),
        "temperature": flat("temperature"),
        "segments": flat("segments", INDEX) + repeated(firsts),
        "advantage": flat("advantage"),
        "weight": repeated([row.weight for row in rows], kind),
    }
    if any(len(line) > 1 for line in lines):
        arrays["positions"] = pad_rows([np.concatenate([np.arange(len(row.tokens)) for row in line]) for line in lines])
    for name in ("before", "values", "returns"):
        if all(getattr(row, name) is not None for row in rows):
            arrays[name] = flat(name)
    there: dict[str, Any] = dict(zip(arrays, up(device, *arrays.values()), strict=True))
    there |= {name: None for name in ("positions", "before", "values", "returns") if name not in there}
    return MicroBatch(members=rows, versions=flat("versions", INDEX), **there)
