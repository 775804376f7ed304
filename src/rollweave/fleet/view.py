"""FleetView: the engines that a request may go to, and how many trajectories each of them holds.

The driver has one, which counts the trajectories of all hosts; each host has one, which counts its own. A host's view
is brought up to date by `FleetUpdate` messages. It may be old: then an engine that is gone fails the call and the host
routes again, an engine that drains still answers, and a new engine is not used for a moment. Never a wrong token.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

EngineId = str
"""`h20-3/1`: pool, number in it, and life. The successor of an engine that died has another id."""

EngineState = Literal["starting", "serving", "draining", "gone"]

STALE_ENTRIES = 8
"""Per engine, before a line is made anew."""


class EngineInfo(NamedTuple):
    """What a host knows of an engine."""

    id: EngineId
    state: EngineState
    tasks: tuple[str, ...]
    """Tasks whose trajectories prefer it; none: it takes any."""
    address: Any
    """Inline the engine itself, on Ray its worker."""


@dataclass(frozen=True, slots=True)
class FleetUpdate:
    """All engines that serve or drain, in order of joining. Of two updates the one of the higher revision is true."""

    revision: int
    engines: tuple[EngineInfo, ...]


class _Line(NamedTuple):
    """The open engines for some tasks, by how many trajectories they hold."""

    engines: list[EngineId]
    members: frozenset[EngineId]
    entries: list[tuple[int, int, EngineId]]
    """(held, order of joining, id), a heap; an entry that is no longer true is skipped when it comes up."""


class FleetView:
    def __init__(self, update: FleetUpdate | None = None) -> None:
        self.revision = -1
        self.engines: dict[EngineId, EngineInfo] = {}
        self.held: dict[EngineId, int] = {}
        self._order: dict[EngineId, int] = {}
        self._named: frozenset[str] = frozenset()
        """Tasks that an open engine names."""
        self._lines: dict[str, _Line] = {}
        """By task; "": for tasks that no open engine names."""
        self._gone: set[EngineId] = set()
        if update is not None:
            self.update(update)

    def update(self, update: FleetUpdate) -> bool:
        """Returns whether it was news."""
        if update.revision <= self.revision:
            return False
        self.revision = update.revision
        self.engines = {engine.id: engine for engine in update.engines if engine.id not in self._gone}
        self._order = {id: order for order, id in enumerate(self.engines)}
        self._refresh()
        return True

    def note_gone(self, id: EngineId) -> None:
        """A call to it failed. Ids are never used again, so no later update makes it open."""
        self._gone.add(id)
        if self.engines.pop(id, None) is not None:
            self._refresh()

    def is_open(self, id: EngineId) -> bool:
        """Whether new requests may go to it."""
        engine = self.engines.get(id)
        return engine is not None and engine.state == "serving"

    def open_to(self, task: str) -> Sequence[EngineId]:
        """Engines that name the task; if there are none, those that name no task; if there are none, all. Only open
        ones, in order of joining."""
        return self._line(task).engines

    def least_held(self, task: str) -> EngineId:
        """Of those, the one that holds the fewest trajectories; ties by order of joining.

        There may be thousands: looking at each of them for every trajectory would take longer than its turns.
        """
        line = self._line(task)
        entries = line.entries
        while entries[0][0] != self.held.get(entries[0][2], 0):
            heapq.heappop(entries)
        return entries[0][2]

    def hold(self, id: EngineId, more: int) -> None:
        held = self.held[id] = self.held.get(id, 0) + more
        for line in self._lines.values():
            if id in line.members:
                heapq.heappush(line.entries, (held, self._order[id], id))

    def _line(self, task: str) -> _Line:
        key = task if task in self._named else ""
        line = self._lines.get(key)
        if line is None or len(line.entries) > STALE_ENTRIES * len(line.engines):
            engines = line.engines if line is not None else self._open_to(key)
            entries = [(self.held.get(id, 0), self._order[id], id) for id in engines]
            heapq.heapify(entries)
            line = self._lines[key] = _Line(engines, frozenset(engines), entries)
        return line

    def _open_to(self, task: str) -> list[EngineId]:
        open_ones = [engine for engine in self.engines.values() if engine.state == "serving"]
        named = [engine.id for engine in open_ones if task in engine.tasks]
        unnamed = [engine.id for engine in open_ones if not engine.tasks]
        return named or unnamed or [engine.id for engine in open_ones]

    def _refresh(self) -> None:
        open_ones = (engine for engine in self.engines.values() if engine.state == "serving")
        self._named = frozenset(task for engine in open_ones for task in engine.tasks)
        self._lines = {}
        self.held = {id: held for id, held in self.held.items() if held and id in self.engines}
