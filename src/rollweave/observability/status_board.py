"""StatusBoard: once a second the driver writes down what it is doing, for whoever asks from outside.

`status.json` is replaced in one move, so `rollweave status` reads files only: it works from another terminal, on a
run that hangs, and after one that died.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollweave.clock import Waiting
from rollweave.observability.accounting import Accountant
from rollweave.observability.jsonl import encode
from rollweave.observability.lastminute import LastMinute, Pool
from rollweave.observability.screen import Header
from rollweave.observability.waitfor import EPISODE, wait_for_graph

if TYPE_CHECKING:
    from rollweave.engines.protocol import EngineStats

WAITS_KEPT = 50
"""Longest first; thousands of episodes may wait at once."""

Ledger = Callable[[], dict[str, dict[str, int]]]


class StatusBoard:
    def __init__(
        self,
        folder: Path,
        header: Header,
        accountant: Accountant,
        ledger: Ledger,
        now: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = folder / "status.json"
        self._header = header
        self._accountant = accountant
        self._ledger = ledger
        self._now = now
        self._wall = wall
        self._began_wall = wall()
        self._minute = LastMinute()
        self._began = self._at = now()
        self._environments: Counter[str] = Counter()
        self._slot_seconds = 0.0

    def update(self, waits: Sequence[Waiting], engines: Sequence[EngineStats]) -> None:
        """`waits`: of the driver and of every host."""
        now = self._now()
        self._watch_environments(waits, now)
        self._minute.look(now, self._pools(engines, now))
        self._write(self._snapshot(waits, now))

    def _watch_environments(self, waits: Iterable[Waiting], now: float) -> None:
        """What episodes wait for now stands for the time since the last look."""
        passed, self._at = now - self._at, now
        slots = self._accountant.slots
        self._slot_seconds += passed * slots.slots
        doing = Counter(_doing(wait.what) for wait in waits if wait.who.startswith(EPISODE))
        for what, count in doing.items():
            self._environments[what] += passed * count  # type: ignore[assignment]
        playing = slots.slots - slots.free
        self._environments["between calls"] += passed * max(0, playing - doing.total())  # type: ignore[assignment]

    def _pools(self, engines: Sequence[EngineStats], now: float) -> dict[str, Pool]:
        elapsed = now - self._began
        busy = sum(engine.busy_seconds for engine in engines)
        recompute = sum(engine.recompute_seconds for engine in engines)
        return {
            "engine": Pool(elapsed * len(engines), {"generate": busy - recompute, "recompute": recompute}),
            "trainer": Pool(elapsed, self._accountant.loop.totals(now)),
            "environments": Pool(self._slot_seconds, dict(self._environments)),
        }

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
            "graph": [node.as_json() for node in wait_for_graph(waits, accounts.work, accounts.slots, now)],
            "waits": [wait._asdict() for wait in sorted(waits, key=lambda wait: -wait.seconds)[:WAITS_KEPT]],
            "last_minute": {"seconds": self._minute.seconds, "pools": self._minute.shares()},
            "queue": {
                "complete": len(accounts.queue.complete),
                "running": len(accounts.work.groups),
                "slots": accounts.slots.slots,
                "free": accounts.slots.free,
                "in_line": accounts.slots.in_line,
                "refused_seconds": accounts.slots.refused_for(now),
            },
            "ledger": self._ledger(),
            "restarts": dict(accounts.restarts),
        }

    def _write(self, snapshot: dict[str, Any]) -> None:
        partial = self._path.with_name("status.json.partial")
        try:
            partial.write_text(encode(snapshot) + "\n", encoding="utf-8")
            os.replace(partial, self._path)
        except OSError:
            pass  # a full disk ends the run where something is lost by it; a status is not


def _doing(what: str) -> str:
    """`environment step 12` and `environment step 3` are the same kind of time."""
    words = what.split()
    if words[0] == "environment":
        return words[1]
    return "generate" if words[0] == "generation" else words[0]
