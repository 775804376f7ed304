"""EngineLoop: makes an asynchronous `Engine` of a synchronous one.

    forever: take ADDs and ABORTs, compute one step, call back the callers whose requests ended

Commands take effect between two steps only, so none of them stalls the batch. On the virtual clock a step
takes the time `step_seconds` says, which fixes the order of events for a real engine too. Several engines in one
process step in a `thread` each; what they are told during a step waits for its end.

A request with `kv_from` is added at once, but runs only when the KV cache of its context has come from the prefill
engine (or cannot come). Meanwhile the others go on.

With a `slowdown` it stands for a slower device: after each step it waits as long as that device would have taken more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rollweave.clock import Clock
from rollweave.config.cluster import Slowdown
from rollweave.engines.protocol import Completion, EngineStats, KvAsk, KvRows, OnEnd, Request, SteppedEngine
from rollweave.errors import EngineGone
from rollweave.observability.memory import resident_mb
from rollweave.versions import Version
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.store import WeightStore

StepSeconds = Callable[[EngineStats], float]
"""The modelled duration of a step, given the engine's state before it."""

Background = Callable[[Callable[[], Fingerprint]], Awaitable[Fingerprint]]
"""Runs the staging of new weights beside the steps. An engine with a process of its own gives `asyncio.to_thread`:
staging is digests and copies, which leave the interpreter to others. Without it they run between two steps."""

Fetch = Callable[[Any, KvAsk], Awaitable[KvRows | None]]
"""Asks the engine at an address for a KV cache; raises `EngineGone` if it is gone."""


async def fetch_here(engine: Any, ask: KvAsk) -> KvRows | None:
    """From an engine in this process."""
    rows: KvRows | None = await engine.kv_rows(ask)
    return rows


HANDOVER_SECONDS = 10.0
"""A KV cache that has not come by then is computed here."""

T = TypeVar("T")

ROUNDS_BETWEEN_STEPS = 3
"""Times around the event loop between steps. A command that arrives from another process needs two or three to
take effect; with a single one it would lag as many steps behind."""


class EngineLoop:
    def __init__(
        self,
        core: SteppedEngine,
        store: WeightStore,
        clock: Clock,
        step_seconds: StepSeconds | None = None,
        background: Background | None = None,
        thread: Executor | None = None,
        fetch: Fetch = fetch_here,
        slowdown: Slowdown | None = None,
    ) -> None:
        self._core = core
        self._store = store
        self._clock = clock
        self._step_seconds = step_seconds
        self._background = background or self._at_once
        self._thread = thread
        self._fetch = fetch
        self._to_fetch: asyncio.Queue[Request] = asyncio.Queue()
        self._handover_seconds = 0.0
        self._slowdown = slowdown
        self._waited = EngineStats()
        """What waiting adds to the engine's own seconds."""
        self._debt = 0.0
        """Seconds still to be waited; negative after a wait that took too long."""
        self._callbacks: dict[str, OnEnd] = {}
        self._suspensions = 0
        self._stepping = False  # whether the thread computes a step
        self._commands: list[Callable[[], None]] = []  # what has been asked for during that step
        self._preparing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._awake = asyncio.Event()  # whether the engine has its place in the device's memory
        self._awake.set()
        self._between_steps = asyncio.Event()

    async def run(self) -> None:
        """Step while there is work, and fetch KV caches, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fetch_on(tasks))
            await self._step_on()

    async def _step_on(self) -> None:
        while True:
            if self._suspensions or not self._core.has_work:
                self._between_steps.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._step()

    async def _step(self) -> None:
        self._between_steps.clear()
        seconds = self._step_seconds(self._core.stats()) if self._step_seconds else 0.0
        before = self._core.stats() if self._slowdown else None
        ended = self._core.step() if self._thread is None else await self._step_in(self._thread)
        await self._clock.sleep(seconds)
        if self._slowdown and before:
            await self._be_slow(self._slowdown, before)
        for _ in range(ROUNDS_BETWEEN_STEPS):
            await self._clock.sleep(0)
        for completion in ended:
            self._answer(completion)

    async def _step_in(self, thread: Executor) -> list[Completion]:
        self._stepping = True
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, self._core.step)
        finally:
            self._stepping = False
            commands, self._commands = self._commands, []
            for command in commands:
                command()

    async def _be_slow(self, slowdown: Slowdown, before: EngineStats) -> None:
        """Wait for what the step would have taken more; a wait that is too long makes the next one shorter."""
        now = self._core.stats()
        prefill, decode = slowdown.at(Version(now.version).number)
        contexts = now.prefill_seconds - before.prefill_seconds
        answers = now.busy_seconds - before.busy_seconds - contexts
        self._waited.prefill_seconds += (prefill - 1) * contexts
        self._waited.busy_seconds += (prefill - 1) * contexts + (decode - 1) * answers
        self._debt += (prefill - 1) * contexts + (decode - 1) * answers
        if self._debt > 0:
            began = self._clock.now()
            await self._clock.sleep(self._debt)
            self._debt -= self._clock.now() - began

    def _between(self, command: Callable[[], None]) -> None:
        """Run the command at once, or after the step that is being computed."""
        if self._stepping:
            self._commands.append(command)
        else:
            command()

    def add(self, request: Request, on_end: OnEnd) -> None:
        """Queue a request; `on_end` is called the moment it ends."""
        self._between(lambda: self._core.add(request))
        self._callbacks[request.id] = on_end
        self._wake.set()
        if request.kv_from is not None:
            self._to_fetch.put_nowait(request)

    async def generate(self, request: Request) -> Completion:
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.add(request, lambda completion: None if answer.done() else answer.set_result(completion))
        return await answer

    def abort(self, request_id: str) -> None:
        self._between(lambda: self._abort(request_id))

    def _abort(self, request_id: str) -> None:
        completion = self._core.abort(request_id)
        if completion is not None:
            self._answer(completion)

    def release(self, trajectory: str) -> None:
        self._between(lambda: self._core.release(trajectory))

    async def kv_rows(self, ask: KvAsk) -> KvRows | None:
        """For the engine that decodes: what this one has of a context."""
        return await self._result(lambda: self._core.kv_rows(ask))

    async def _fetch_on(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            request = await self._to_fetch.get()
            tasks.create_task(self._fetch_for(request), name=f"the KV cache for {request.id}")

    async def _fetch_for(self, request: Request) -> None:
        """Hand a request the KV cache that the prefill engine has. If that is gone, or too slow, the request goes on
        without it."""
        began, rows = self._clock.now(), None
        ask = await self._result(lambda: self._core.lacks(request))
        if ask is not None:
            with suppress(EngineGone, TimeoutError):
                async with asyncio.timeout(HANDOVER_SECONDS):
                    rows = await self._fetch(request.kv_from, ask)
            self._handover_seconds += self._clock.now() - began
        self._between(lambda: self._core.deliver(request, rows))
        self._wake.set()

    async def _result(self, command: Callable[[], T]) -> T:
        """What a command returns that runs between two steps."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._between(lambda: None if result.done() else result.set_result(command()))
        return await result

    async def suspend(self, asleep: bool = False) -> None:
        self._suspensions += 1
        self._wake.set()
        await self._between_steps.wait()
        if asleep and self._awake.is_set():
            async with self._preparing:  # what is being prepared needs the device's memory
                self._awake.clear()
                self._core.sleep()

    async def resume(self) -> None:
        self._suspensions -= 1
        if not self._suspensions:
            if not self._awake.is_set():
                self._core.wake()
                self._awake.set()
            self._between_steps.clear()
            self._wake.set()

    async def prepare(self, version: int) -> Fingerprint:
        while True:
            await self._awake.wait()
            async with self._preparing:  # there is one spare set of weights to fill
                if self._awake.is_set():
                    return await self._background(lambda: self._core.prepare(partial(self._store.pull, version)))

    async def commit(self, version: int) -> None:
        await self._awake.wait()
        self._core.commit(version)

    async def stats(self) -> EngineStats:
        stats, waited = self._core.stats(), self._waited
        return replace(
            stats,
            busy_seconds=stats.busy_seconds + waited.busy_seconds,
            prefill_seconds=stats.prefill_seconds + waited.prefill_seconds,
            memory_mb=resident_mb(),
            handover_seconds=self._handover_seconds,
        )

    async def _at_once(self, work: Callable[[], Fingerprint]) -> Fingerprint:
        with self._clock.blocked():
            return work()

    def _answer(self, completion: Completion) -> None:
        self._callbacks.pop(completion.id)(completion)
