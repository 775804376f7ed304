"""KV caches of trajectories whose environment is at work: kept while there is room, the oldest go first."""

from __future__ import annotations

from typing import NamedTuple


class IdleCache(NamedTuple):
    tokens: int
    version: int
    """The weights it was computed with."""


class IdleCaches:
    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        """Off: every turn computes its whole context."""
        self.tokens = 0
        self._by_trajectory: dict[str, IdleCache] = {}

    def put(self, trajectory: str, tokens: int, version: int) -> None:
        if self.enabled:
            self.take(trajectory)
            self._by_trajectory[trajectory] = IdleCache(tokens, version)
            self.tokens += tokens

    def take(self, trajectory: str) -> IdleCache | None:
        cache = self._by_trajectory.pop(trajectory, None)
        if cache is not None:
            self.tokens -= cache.tokens
        return cache

    def drop(self, trajectory: str) -> None:
        self.take(trajectory)

    def shrink(self, room: int) -> int:
        """Evict until they fit into this many tokens; returns how many went."""
        evicted = 0
        while self.tokens > max(0, room) and self._by_trajectory:
            self.drop(next(iter(self._by_trajectory)))
            evicted += 1
        return evicted
