"""Long-tail migration: when most responses are done, the rest goes on on a few GPUs and the next job gets the others.

Only requests move, inside one pool of equal GPUs; training still waits for every response, so nothing changes for the
job but the place where its tail is generated. Planning never counts on it; it only gives time back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

THRESHOLD = 0.8
"""Share of responses done (RollMux section 5 names 80 % as an example)."""
TAIL_SHARE = 0.25
"""Share of the GPUs that keep the tail; the paper leaves it open."""
OVERHEAD_S = 3.0
"""Re-prefill of the kept tokens (RollPacker measures less than 3 s for the same operation)."""


@dataclass(frozen=True, slots=True)
class TailSplit:
    """One rollout phase cut in two: all GPUs until `handover_s`, the tail on `tail_gpus` until `end_s`."""

    handover_s: float
    end_s: float
    gpus: int
    tail_gpus: int

    @property
    def freed_gpus(self) -> int:
        return self.gpus - self.tail_gpus

    def next_end(self, work_s: float) -> float:
        """When the next rollout, of `work_s` seconds on all GPUs, is done if it starts at the hand-over.

        It runs at the rate of the freed GPUs until the tail ends, then at full rate.
        """
        done = (self.end_s - self.handover_s) * self.freed_gpus / self.gpus
        if done >= work_s:
            return self.handover_s + work_s * self.gpus / self.freed_gpus
        return self.end_s + work_s - done

    @property
    def occupied_s(self) -> float:
        """Seconds of the whole node the phase takes, in node-equivalents: what the next job has to wait for."""
        return self.handover_s + (self.end_s - self.handover_s) * self.tail_gpus / self.gpus


def split(
    lengths: Sequence[float],
    seconds_per_token: float,
    gpus: int,
    tensor_parallel: int = 1,
    threshold: float = THRESHOLD,
    overhead_s: float = OVERHEAD_S,
) -> TailSplit | None:
    """The cut of a phase whose responses have these lengths, or None if moving costs more than it frees.

    Every response decodes at its own speed, whatever the number of GPUs, so the last one ends when it would have
    ended anyway, plus the migration.
    """
    if not lengths or gpus <= tensor_parallel:
        return None
    ends = sorted(length * seconds_per_token for length in lengths)
    done = ends[math.ceil(threshold * len(ends)) - 1]
    tail = max(tensor_parallel, math.ceil(TAIL_SHARE * gpus))
    cut = TailSplit(done + overhead_s, ends[-1] + overhead_s, gpus, tail)
    return cut if tail < gpus and cut.occupied_s < ends[-1] else None


def pair_period(first: TailSplit, second: TailSplit, trains: tuple[float, float]) -> float:
    """Two jobs taking turns on one rollout node and one train node, both handing over at their threshold.

    Without a tail this is the closed form of coexec.py; with it the rollout node is busy for `occupied_s` only.
    """
    cycle = max(cut.end_s + train for cut, train in zip((first, second), trains, strict=True))
    return max(cycle, first.occupied_s + second.occupied_s, sum(trains))
