"""LLMProxy: the one door through which environments reach engines.

It picks a worker for each trajectory and stays with it, because that worker holds the trajectory's KV cache; a new
trajectory goes to the worker that holds the fewest. Members of a group that are to stay together all go to the
worker their group's number says, so that every host picks the same one without asking. Workers may come in pools:
then the trajectory's tag says which of them it may go to.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from rollweave.engines.protocol import Completion, Engine, Request

Pools = Callable[[str], Sequence[int]]
"""The numbers of the workers for a tag."""

STALE_ENTRIES = 8
"""Per worker, before a line is made anew."""


class _Line(NamedTuple):
    """The workers of a pool by how many trajectories they hold."""

    pool: Sequence[int]
    workers: frozenset[int]
    entries: list[tuple[int, int]]
    """(held, worker), a heap; an entry that is no longer true is skipped when it comes up."""


def affinity(tasks: Sequence[Sequence[str]]) -> Pools:
    """From the tasks that prefer each worker: those that name the task, else those that name none, else all."""
    everybody = range(len(tasks))
    open_to_all = [number for number in everybody if not tasks[number]] or everybody
    named: dict[str, list[int]] = {}
    for number in everybody:
        for task in tasks[number]:
            named.setdefault(task, []).append(number)
    return lambda tag: named.get(tag, open_to_all)


class LLMProxy:
    def __init__(self, engines: Sequence[Engine], pool: Pools | None = None) -> None:
        """`pool`: default: all of them, whatever the tag."""
        self._engines = list(engines)
        everybody = range(len(self._engines))
        self._pool = pool or (lambda tag: everybody)
        self._home: dict[str, int] = {}
        self._held = [0] * len(self._engines)
        self._lines: dict[int, _Line] = {}
        """By the identity of the pool."""
        self._latest: dict[str, str] = {}
        """The latest request of each trajectory: it has one at a time."""

    def generate(self, request: Request, group: int | None = None) -> Awaitable[Completion]:
        """Sample a turn. `group`: the members of this group share a worker."""
        worker = self._home.get(request.trajectory)
        if worker is None:
            pool = self._pool(request.tag)
            worker = self._least_busy(pool) if group is None else pool[group % len(pool)]
            self._home[request.trajectory] = worker
            self._hold(worker, +1)
        self._latest[request.trajectory] = request.id
        return self._engines[worker].generate(request)

    def abort(self, trajectory: str) -> None:
        """Stop what is being generated for it; an answer that has ended already is none the worse."""
        if trajectory in self._home:
            self._engines[self._home[trajectory]].abort(self._latest[trajectory])

    def release(self, trajectory: str) -> None:
        """The trajectory has ended: forget its worker, free its cache."""
        worker = self._home.pop(trajectory, None)
        if worker is not None:
            self._hold(worker, -1)
            del self._latest[trajectory]
            self._engines[worker].release(trajectory)

    def _least_busy(self, pool: Sequence[int]) -> int:
        """There may be thousands: looking at each of them for every trajectory would take longer than its turns."""
        line = self._lines.get(id(pool))
        if line is None or len(line.entries) > STALE_ENTRIES * len(pool):
            entries = [(self._held[worker], worker) for worker in pool]
            heapq.heapify(entries)
            line = self._lines[id(pool)] = _Line(pool, frozenset(pool), entries)
        entries = line.entries
        while entries[0][0] != self._held[entries[0][1]]:
            heapq.heappop(entries)
        return entries[0][1]

    def _hold(self, worker: int, more: int) -> None:
        self._held[worker] += more
        for line in self._lines.values():
            if worker in line.workers:
                heapq.heappush(line.entries, (self._held[worker], worker))
