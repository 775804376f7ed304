"""Counters that never go back: an engine that is started again begins at zero, and rates are differences."""

from __future__ import annotations

from dataclasses import fields, replace

from rollweave.engines.protocol import EngineStats

GAUGES = frozenset({"running", "waiting", "version", "checksum", "memory_mb"})
"""What an engine says about now. Everything else it counts since its start."""

COUNTERS = tuple(field.name for field in fields(EngineStats) if field.name not in GAUGES)


class LifetimeStats:
    """Adds up the counters of an engine's lives. What one counted after it was last asked is lost with it."""

    def __init__(self) -> None:
        self._earlier = EngineStats()
        self._now = EngineStats()

    def seen(self, stats: EngineStats) -> EngineStats:
        """Take a look at the living engine; returns its stats with those of its former lives."""
        self._now = stats
        return _plus(self._earlier, stats)

    def died(self) -> None:
        self._earlier = _plus(self._earlier, self._now)
        self._now = EngineStats()


def _plus(earlier: EngineStats, now: EngineStats) -> EngineStats:
    return replace(now, **{name: getattr(earlier, name) + getattr(now, name) for name in COUNTERS})
