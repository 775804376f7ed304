"""EngineLoop: makes an asynchronous `Engine` of a synchronous one.

    forever: take ADDs and ABORTs, compute one step, call back whoever's request ended

Commands take effect between two steps only, so none of them stalls the batch. On the virtual clock a step
takes the time `step_seconds` says, which fixes the order of events for a real engine too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollweave.clock import Clock
from rollweave.engines.protocol import Completion, EngineStats, Request, SteppedEngine
from rollweave.weights.store import WeightStore

StepSeconds = Callable[[EngineStats], float]
"""The modelled duration of a step, given the engine's state before it."""


class EngineLoop:
    def __init__(
        self, core: SteppedEngine, store: WeightStore, clock: Clock, step_seconds: StepSeconds | None = None
    ) -> None:
        self._core = core
        self._store = store
        self._clock = clock
        self._step_seconds = step_seconds
        self._answers: dict[str, asyncio.Future[Completion]] = {}
        self._suspended = False
        self._stepping = False
        self._wake = asyncio.Event()
        self._between_steps = asyncio.Event()

    async def run(self) -> None:
        """Step while there is work, until cancelled."""
        while True:
            if self._suspended or not self._core.has_work:
                self._between_steps.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._step()

    async def _step(self) -> None:
        self._between_steps.clear()
        seconds = self._step_seconds(self._core.stats()) if self._step_seconds else 0.0
        ended = self._core.step()
        await self._clock.sleep(seconds)  # at least once around the loop, so that commands get in
        for completion in ended:
            self._answer(completion)

    async def generate(self, request: Request) -> Completion:
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._answers[request.id] = answer
        self._core.add(request)
        self._wake.set()
        return await answer

    def abort(self, request_id: str) -> None:
        completion = self._core.abort(request_id)
        if completion is not None:
            self._answer(completion)

    def release(self, trajectory: str) -> None:
        self._core.release(trajectory)

    async def suspend(self) -> None:
        self._suspended = True
        self._wake.set()
        await self._between_steps.wait()

    async def resume(self) -> None:
        self._suspended = False
        self._between_steps.clear()
        self._wake.set()

    async def prepare(self, version: int) -> str:
        return self._core.prepare(version, self._store.pull(version))

    async def commit(self, version: int) -> None:
        self._core.commit(version)

    async def stats(self) -> EngineStats:
        return self._core.stats()

    async def close(self) -> None:
        for answer in self._answers.values():
            answer.cancel()

    def _answer(self, completion: Completion) -> None:
        answer = self._answers.pop(completion.id, None)
        if answer is not None and not answer.done():
            answer.set_result(completion)
