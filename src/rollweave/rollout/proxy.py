"""LLMProxy: the one door through which environments reach engines.

It picks a worker for each trajectory and stays with it, because that worker holds the trajectory's KV cache;
a new trajectory goes to the worker with the fewest requests under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollweave.engines.protocol import Completion, Engine, Request


class LLMProxy:
    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = list(engines)
        self._home: dict[str, int] = {}
        self._under_way = [0] * len(self._engines)

    async def generate(self, request: Request) -> Completion:
        worker = self._home.setdefault(request.trajectory, self._least_busy())
        self._under_way[worker] += 1
        try:
            return await self._engines[worker].generate(request)
        finally:
            self._under_way[worker] -= 1

    def abort(self, trajectory: str, request_id: str) -> None:
        if trajectory in self._home:
            self._engines[self._home[trajectory]].abort(request_id)

    def release(self, trajectory: str) -> None:
        """The trajectory has ended: forget its worker, free its cache."""
        worker = self._home.pop(trajectory, None)
        if worker is not None:
            self._engines[worker].release(trajectory)

    def _least_busy(self) -> int:
        return min(range(len(self._engines)), key=self._under_way.__getitem__)
