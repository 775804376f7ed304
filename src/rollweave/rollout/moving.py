"""MovingProxy: a proxy that can move requests from engine to engine while they are answered.

Only requests move. What an engine has sampled of an answer goes along and is not sampled again; the next engine
computes the context anew and goes on. A token is a function of the request's seed, its place and its context, so the
answer is the one that the first engine would have given.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from math import ceil

from rollweave.engines.protocol import Completion, Engine, Request
from rollweave.rollout.proxy import LLMProxy


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
