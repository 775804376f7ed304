"""Prefill workers of their own: they compute contexts and hand the KV cache to the engine that decodes (xPyD).

A trajectory stays with its worker, which keeps what it computed; what the decode worker sampled meanwhile is part of
the next prefill. Only what is new travels: the decode worker has the rest.
"""

from __future__ import annotations

from typing import NamedTuple

from rollweave.clock import Clock
from rollweave.simulation.costs.roofline import EngineCosts, pairs


class _Known(NamedTuple):
    worker: int
    tokens: int
    version: int


class PrefillPool:
    def __init__(self, clock: Clock, costs: EngineCosts, workers: int) -> None:
        self._clock = clock
        self._costs = costs
        self._free_at = [0.0] * workers
        self._known: dict[str, _Known] = {}
        self.busy_seconds = 0.0
        """Of all workers together."""

    def compute(self, trajectory: str, context: int, version: int) -> tuple[int, float]:
        """How many tokens of this context have to be computed, and when the decode worker has its cache."""
        now = self._clock.now()
        known = self._known.get(trajectory)
        worker = known.worker if known else self._free_at.index(min(self._free_at))
        new = context - (known.tokens if known and known.version == version else 0)
        seconds = self._costs.recompute(new, pairs(new, context))
        self._free_at[worker] = max(now, self._free_at[worker]) + seconds
        self._known[trajectory] = _Known(worker, context, version)
        self.busy_seconds += seconds
        return new, self._free_at[worker] + self._costs.handover(new)

    def release(self, trajectory: str) -> None:
        self._known.pop(trajectory, None)
