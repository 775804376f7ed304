"""Adapts how many episodes run at once to what the engines' KV caches carry.

An engine that holds fewer caches than there are episodes evicts one to serve another, and computes the evicted
context again later. If that happens often, the engines mostly compute what they had. So the limit grows by a little
while nothing is evicted, and shrinks by a quarter when too much is computed again, as TCP does under congestion. Too
many episodes cost far more than a few too few, so a limit that was too much is not tried again for a while.

`decide` is the whole rule. `AdaptiveConcurrency` looks at the engines every few seconds and applies it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollweave.clock import Clock, DeadlineExceeded
from rollweave.fleet.fleet import Fleet, FleetStats
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher

LOOK_EVERY_SECONDS = 5.0
TOLERATED_SHARE = 0.05
"""Of all tokens computed, those computed again after an eviction."""
CUT = 0.75
RAISE_SHARE = 1 / 32
"""Of the ceiling, at each look."""

BELOW_THE_EDGE = 0.9
"""Of the limit at which it was last too much: no higher, for a while."""
TRY_AGAIN_AFTER = 60
"""Looks: contexts get longer and shorter as a policy learns, so the edge moves."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """What happened in all engines between two looks, and how it stands now."""

    evictions: int
    computed: int
    """Tokens computed for the first time: prefilled or sampled."""
    recomputed: int
    running: int
    waiting: int
    playing: int
    """Episodes: at the first look or at the second, whichever was more."""
    updated: bool = False
    """The weights changed meanwhile: then caches were rebuilt for another reason."""

    @property
    def recomputed_share(self) -> float:
        total = self.computed + self.recomputed
        return self.recomputed / total if total else 0.0


def decide(limit: int, floor: int, ceiling: int, pressure: Pressure) -> int:
    """The next limit."""
    in_effect = pressure.playing <= limit  # episodes under way are not stopped: a cut needs time to show
    if pressure.evictions and pressure.recomputed_share > TOLERATED_SHARE and not pressure.updated and in_effect:
        return max(floor, int(limit * CUT))
    # More episodes help only if the limit is what keeps them away and the engines do not make them wait anyway.
    if not pressure.evictions and pressure.waiting == 0 and pressure.playing >= limit:
        return min(ceiling, limit + max(1, int(ceiling * RAISE_SHARE)))
    return limit


@dataclass(slots=True)
class AdaptiveConcurrency:
    fleet: Fleet
    dispatcher: Dispatcher
    clock: Clock
    recorder: Emitter
    floor: int
    ceiling: int
    _playing: int = 0
    _edge: int | None = None
    """The limit that was last too much."""
    _looks_since_cut: int = 0

    async def run(self) -> None:
        """Adapt, until cancelled."""
        self.dispatcher.limit = self.ceiling
        self.recorder.emit("concurrency.begin", limit=self.ceiling)
        before = await self._look()
        while True:
            await self.clock.sleep(LOOK_EVERY_SECONDS)
            now = await self._look()
            if now and before:
                self._apply(self._pressure(before, now))
            before = now

    async def _look(self) -> FleetStats | None:
        """The engines' counters; None if one does not answer in time."""
        try:
            with self.clock.wait("concurrency", "the engines' counters", LOOK_EVERY_SECONDS):
                return await self.fleet.look()
        except DeadlineExceeded:
            return None

    def _pressure(self, before: FleetStats, now: FleetStats) -> Pressure:
        a, b = before.totals, now.totals
        playing, self._playing = self._playing, self.dispatcher.playing
        return Pressure(
            evictions=b.evictions - a.evictions,
            computed=b.prefilled_tokens - a.prefilled_tokens + b.sampled_tokens - a.sampled_tokens,
            recomputed=b.recomputed_tokens - a.recomputed_tokens,
            running=sum(engine.running for engine in now.engines),
            waiting=sum(engine.waiting for engine in now.engines),
            playing=max(playing, self._playing),
            updated=[engine.version for engine in before.engines] != [engine.version for engine in now.engines],
        )

    def _apply(self, pressure: Pressure) -> None:
        before = self.dispatcher.limit or self.ceiling
        limit = decide(before, self.floor, self._highest(before), pressure)
        self._looks_since_cut += 1
        if limit < before:
            self._edge, self._looks_since_cut = before, 0
        if limit == before:
            return
        self.dispatcher.limit = limit
        self.recorder.emit(
            "concurrency.change",
            limit=limit,
            before=before,
            edge=self._edge,
            evictions=pressure.evictions,
            recomputed_share=round(pressure.recomputed_share, 4),
            running=pressure.running,
            waiting=pressure.waiting,
            playing=pressure.playing,
        )

    def _highest(self, limit: int) -> int:
        if self._edge is None or self._looks_since_cut >= TRY_AGAIN_AFTER:
            return self.ceiling
        return min(self.ceiling, max(limit, int(self._edge * BELOW_THE_EDGE)))
