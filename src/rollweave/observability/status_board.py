"""StatusBoard: once a second the driver writes down what it is doing, for commands that ask from outside.

`status.json` is replaced in one move, so `rollweave status` reads files only: it works from another terminal, on a
run that hangs, and after one that died.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rollweave.clock import Waiting
from rollweave.observability.accounting import Accountant
from rollweave.observability.jsonl import encode, replace_file
from rollweave.observability.screen import Header
from rollweave.observability.waits import EPISODE, wait_for_graph


@dataclass(slots=True)
class PoolTimes:
    capacity: float
    """Seconds it could have worked since the start."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by what it did; the rest of the capacity: nothing."""


class LastMinute:
    """Says where the last 60 seconds went, from counts that only grow.

    Every pool has a capacity in seconds (an engine one a second, 64 environments 64) and says how much of it went into
    what. Two looks at these counts, a minute apart, tell the shares of that minute.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds = seconds
        self._looks: deque[tuple[float, dict[str, PoolTimes]]] = deque()

    def look(self, time: float, pools: dict[str, PoolTimes]) -> None:
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
        return {name: _between(first.get(name, PoolTimes(0.0)), pool) for name, pool in last.items()}


def _between(first: PoolTimes, last: PoolTimes) -> dict[str, float]:
    capacity = last.capacity - first.capacity
    if capacity <= 0:
        return {}
    grown = {what: (spent - first.spent.get(what, 0.0)) / capacity for what, spent in last.spent.items()}
    return {what: min(1.0, share) for what, share in grown.items() if share > 0}


WAITS_KEPT = 50
"""Longest first; thousands of episodes may wait at once."""


class StatusBoard:
    def __init__(
        self,
        folder: Path,
        header: Header,
        accountant: Accountant,
        ledger: Callable[[], dict[str, dict[str, int]]],
        now: Callable[[], float],
        wall: Callable[[], float] = time.time,
        places: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._path = folder / "status.json"
        self._header = header
        self._accountant = accountant
        self._ledger = ledger
        self._now = now
        self._places = places
        self._wall = wall
        self._began_wall = wall()
        self._minute = LastMinute()
        self._began = self._at = now()
        self._environments: Counter[str] = Counter()
        self._engine_seconds = self._slot_seconds = 0.0

    def update(self, waits: Sequence[Waiting], engines: int, spent: Mapping[str, float]) -> None:
        """`waits`: of the driver and of every host. `spent`: seconds of so many `engines` by what they did."""
        now = self._now()
        passed, self._at = now - self._at, now
        self._engine_seconds += passed * engines  # engines die and join, so their number now says nothing of the past
        self._watch_environments(waits, passed)
        pools = {
            "engine": PoolTimes(self._engine_seconds, dict(spent)),
            "trainer": PoolTimes(now - self._began, self._accountant.loop.totals(now)),
            "environments": PoolTimes(self._slot_seconds, dict(self._environments)),
        }
        self._minute.look(now, pools)
        with suppress(OSError):  # a full disk ends the run where something is lost by it; a status is not
            replace_file(self._path, encode(self._snapshot(waits, now)) + "\n")

    def _watch_environments(self, waits: Iterable[Waiting], passed: float) -> None:
        """What episodes wait for now stands for the time since the last look."""
        slots = self._accountant.slots
        self._slot_seconds += passed * slots.slots
        doing = Counter(_doing(wait.what) for wait in waits if wait.who.startswith(EPISODE))
        for what, count in doing.items():
            self._environments[what] += passed * count  # type: ignore[assignment]
        playing = slots.slots - slots.free
        self._environments["between calls"] += passed * max(0, playing - doing.total())  # type: ignore[assignment]

    def _snapshot(self, waits: Sequence[Waiting], now: float) -> dict[str, Any]:
        accounts = self._accountant
        doing = accounts.loop.doing
        return {
            **asdict(self._header),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "began": self._began_wall,
            "written": self._wall(),
            "elapsed": now - self._began,
            "phase": {"name": doing[0], "seconds": now - doing[1]} if doing else None,
            "graph": [asdict(node) for node in wait_for_graph(waits, accounts.work, accounts.slots, now)],
            "waits": [wait._asdict() for wait in sorted(waits, key=lambda wait: -wait.seconds)[:WAITS_KEPT]],
            "last_minute": {"seconds": self._minute.seconds, "pools": self._minute.shares()},
            "queue": {
                "complete": len(accounts.queue.complete),
                "running": len(accounts.work.groups),
                "scoring": len(accounts.work.scoring),
                "slots": accounts.slots.slots,
                "free": accounts.slots.free,
                "in_line": accounts.slots.in_line,
                "refused_seconds": accounts.slots.refused_for(now),
            },
            "ledger": self._ledger(),
            "restarts": dict(accounts.restarts),
            "places": self._places(),
        }


def _doing(what: str) -> str:
    """`environment step 12` and `environment step 3` are the same kind of time."""
    words = what.split()
    if words[0] == "environment":
        return words[1]
    return "generate" if words[0] == "generation" else words[0]
