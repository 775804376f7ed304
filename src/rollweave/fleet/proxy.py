"""LLMProxy: the one door through which environments reach engines.

It picks a worker for each trajectory and stays with it, because that worker holds the trajectory's KV cache; a new
trajectory goes to the worker that holds the fewest. Members of a group that are to stay together all go to the
worker their group's number says, so that every host picks the same one without asking. Workers may come in pools:
then the trajectory's tag says which of them it may go to.

MovingProxy: a proxy that can move requests from engine to engine while they are answered.

Only requests move. What an engine has sampled of an answer goes along and is not sampled again; the next engine
computes the context anew and goes on. A token is a function of the request's seed, its place and its context, so the
answer is the one that the first engine would have given.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from math import ceil
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


class MovingProxy(LLMProxy):
    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__(engines, lambda tag: self._open)
        self._first = [range(count) for count in range(len(engines) + 1)]
        """The first so many workers."""
        self._open = self._first[-1]
        """The workers that requests may go to."""
        self._answering: set[str] = set()
        """Trajectories with a request in an engine."""
        self._moving: set[str] = set()
        """Those whose request was taken out of one, to be given to another."""
        self._given_up: set[str] = set()
        """Those that nobody wants any more."""
        self._groups: dict[str, int] = {}
        """Of trajectories that stay with their group."""

    async def use(self, workers: int) -> int:
        """From now on only the first so many engines are used, and evenly: what is too much for one, or under way on
        another, is moved. Returns how many answers were moved. Engines that are not used have nothing to do then."""
        self._open = self._first[workers]
        leaving = [trajectory for trajectory in self._surplus() if trajectory not in self._moving]
        async with AsyncExitStack() as standing:  # requests leave an engine between two of its steps
            for worker in {self._home[trajectory] for trajectory in leaving}:
                standing.push_async_callback(self._engines[worker].resume)
                await self._engines[worker].suspend()
            moved = [one for one in leaving if one in self._answering and one not in self._given_up]
            self._moving.update(moved)
            for trajectory in leaving:
                if trajectory in self._answering:
                    super().abort(trajectory)
                else:  # its next turn finds another home; or it has ended meanwhile
                    super().release(trajectory)
        return len(moved)

    def _surplus(self) -> list[str]:
        """Trajectories that are not where their group belongs now; of the others those beyond each engine's fair share,
        the newest first to go."""
        alone = {one: worker for one, worker in self._home.items() if one not in self._groups}
        fair = ceil(len(alone) / len(self._open))
        at: list[list[str]] = [[] for _ in self._engines]
        for trajectory, worker in alone.items():
            at[worker].append(trajectory)
        surplus = [one for worker, held in enumerate(at) for one in held[fair if worker in self._open else 0 :]]
        return surplus + [one for one, group in self._groups.items() if self._home.get(one, 0) != self._belongs(group)]

    def _belongs(self, group: int) -> int:
        return self._open[group % len(self._open)]

    async def generate(self, request: Request, group: int | None = None) -> Completion:
        trajectory = request.trajectory
        if group is not None:
            self._groups[trajectory] = group
        while True:
            completion = await self._answer(request, group)
            if trajectory not in self._moving:
                return completion
            self._moving.discard(trajectory)
            super().release(trajectory)  # it finds another home
            if completion.finish != "aborted":  # it ended before it could be taken out
                return completion
            request = replace(request, begun=tuple(completion.spans))

    def abort(self, trajectory: str) -> None:
        self._moving.discard(trajectory)
        self._given_up.add(trajectory)
        super().abort(trajectory)

    def release(self, trajectory: str) -> None:
        self._moving.discard(trajectory)
        self._given_up.discard(trajectory)
        self._groups.pop(trajectory, None)
        super().release(trajectory)

    async def _answer(self, request: Request, group: int | None) -> Completion:
        self._answering.add(request.trajectory)
        try:
            return await super().generate(request, group)
        finally:
            self._answering.discard(request.trajectory)
