"""LastMinute: where the last 60 seconds went, from counts that only ever grow.

Every pool has a capacity in seconds (an engine one a second, 64 environments 64) and says how much of it went into
what. Two looks at these counts, a minute apart, tell the shares of that minute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SECONDS = 60.0


@dataclass(slots=True)
class Pool:
    capacity: float
    """Seconds it could have worked since the start."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by what it did; the rest of the capacity: nothing."""


class LastMinute:
    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._looks: deque[tuple[float, dict[str, Pool]]] = deque()

    def look(self, time: float, pools: dict[str, Pool]) -> None:
        self._looks.append((time, pools))
        while len(self._looks) > 2 and self._looks[1][0] <= time - self._seconds:
            self._looks.popleft()

    @property
    def seconds(self) -> float:
        """How much of a minute is known."""
        return self._looks[-1][0] - self._looks[0][0] if self._looks else 0.0

    def shares(self) -> dict[str, dict[str, float]]:
        """By pool and by what it did, of its capacity in that time."""
        if len(self._looks) < 2:
            return {}
        (_, first), (_, last) = self._looks[0], self._looks[-1]
        return {name: _between(first.get(name, Pool(0.0)), pool) for name, pool in last.items()}


def _between(first: Pool, last: Pool) -> dict[str, float]:
    capacity = last.capacity - first.capacity
    if capacity <= 0:
        return {}
    grown = {what: (spent - first.spent.get(what, 0.0)) / capacity for what, spent in last.spent.items()}
    return {what: min(1.0, share) for what, share in grown.items() if share > 0}
