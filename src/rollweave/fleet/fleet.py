"""Fleet: the engines of a run. It lives in the driver; other parts ask it and keep no list of their own.

An engine joins under an id that is never used again, serves, and may be gone one day. Its counters stay in the totals
then, so rates, which are differences of totals, never go back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from rollweave.engines.protocol import Engine, EngineStats
from rollweave.fleet.proxy import MovingProxy

EngineId = str
"""`h20-3/1`: pool, number in it, and life: the successor of an engine that died has another id."""

EngineState = Literal["starting", "serving", "draining", "gone"]

GAUGES = frozenset({"running", "waiting", "version", "checksum", "memory_mb"})
"""What an engine says about now. Everything else it counts since its start."""

COUNTERS = tuple(field.name for field in fields(EngineStats) if field.name not in GAUGES)


@dataclass(slots=True, eq=False)
class EngineEntry:
    """One engine as the driver knows it."""

    id: EngineId
    engine: Engine
    pool: str = "engine"
    device: str = ""
    tasks: tuple[str, ...] = ()
    """Tasks whose trajectories prefer it; none: it takes any."""
    state: EngineState = "serving"
    version: int = 0
    seen: EngineStats = field(default_factory=EngineStats)
    """What it said of itself when it was last asked."""


@dataclass(frozen=True, slots=True)
class FleetStats:
    """All engines at one moment."""

    totals: EngineStats
    """The sum of all counters since the start of the run."""
    engines: tuple[EngineStats, ...]
    """Of each engine that serves."""

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(engine.version for engine in self.engines)

    @property
    def memory_mb(self) -> float:
        """Of the largest engine process."""
        return max((engine.memory_mb for engine in self.engines), default=0.0)


class Fleet:
    def __init__(self) -> None:
        self.entries: dict[EngineId, EngineEntry] = {}
        """In order of joining, which breaks ties."""
        self.mover: MovingProxy | None = None
        """The proxy of this process, if it can move requests from engine to engine."""

    def join(self, entry: EngineEntry) -> None:
        """A new engine, which holds the weights that the fleet has."""
        assert entry.id not in self.entries, f"two engines are called {entry.id}"
        self.entries[entry.id] = entry

    def serving(self) -> list[EngineEntry]:
        """The engines that requests may go to, in order of joining."""
        return [entry for entry in self.entries.values() if entry.state == "serving"]

    def __len__(self) -> int:
        return len(self.serving())

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[None]:
        """Inside, the engines stand still."""
        entries = self.serving()
        await asyncio.gather(*(entry.engine.suspend() for entry in entries))
        try:
            yield
        finally:
            await asyncio.gather(*(entry.engine.resume() for entry in entries))

    async def look(self) -> FleetStats:
        """Ask all engines what they have done so far."""
        for entry in self.serving():
            entry.seen = await entry.engine.stats()
        return self.last_seen()

    def last_seen(self) -> FleetStats:
        """What the engines said when they were last asked."""
        totals = EngineStats()
        for entry in self.entries.values():
            totals = plus(totals, entry.seen)
        return FleetStats(totals, tuple(entry.seen for entry in self.serving()))


def plus(one: EngineStats, other: EngineStats) -> EngineStats:
    """The second with the counters of both."""
    return replace(other, **{name: getattr(one, name) + getattr(other, name) for name in COUNTERS})


class LifetimeStats:
    """Adds up the counters of an engine's lives. What one counted after it was last asked is lost with it."""

    def __init__(self) -> None:
        self._earlier = EngineStats()
        self._now = EngineStats()

    def seen(self, stats: EngineStats) -> EngineStats:
        """Take a look at the living engine; returns its stats with those of its former lives."""
        self._now = stats
        return plus(self._earlier, stats)

    def died(self) -> None:
        self._earlier = plus(self._earlier, self._now)
        self._now = EngineStats()
