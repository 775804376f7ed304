"""EngineLoop: preparing new weights beside the steps, or between two of them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from puppets import request
from rollweave.clock import Clock, run_virtual, run_wall
from rollweave.config.cluster import Slowdown
from rollweave.engines.loop import EngineLoop
from rollweave.engines.protocol import Completion, EngineStats, Pull, Request
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.store import MemoryStore


class Core:
    """Always has a step to do; `prepare` ends once three steps have been done meanwhile, if they ever are."""

    has_work = True

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.steps = 0
        self.stepped_meanwhile = False
        self._enough = threading.Event()
        self._wanted: int | None = None

    def step(self) -> list[Completion]:
        self.steps += 1
        if self._wanted is not None and self.steps >= self._wanted:
            self._enough.set()
        return []

    def prepare(self, pull: Pull) -> Fingerprint:
        self._wanted = self.steps + 3
        self.stepped_meanwhile = self._enough.wait(self.patience)
        return Fingerprint(1, "sum")

    def add(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> Completion | None: ...

    def release(self, trajectory: str) -> None: ...

    def commit(self, version: int) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats()


async def prepared(core: Core, clock: Clock, **options: Any) -> Fingerprint:
    loop = EngineLoop(core, MemoryStore(), clock, lambda stats: 0.001, **options)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(loop.run())
        fingerprint = await loop.prepare(1)
        running.cancel()
    return fingerprint


def test_in_a_thread_steps_go_on_while_weights_are_prepared() -> None:
    core = Core(patience=60.0)
    run_wall(lambda clock: prepared(core, clock, background=asyncio.to_thread))
    assert core.stepped_meanwhile


def test_on_the_virtual_clock_it_happens_between_two_steps() -> None:
    """No thread there: its order could not be fixed."""
    core = Core(patience=0.0)
    assert run_virtual(lambda clock: prepared(core, clock)) == Fingerprint(1, "sum")
    assert not core.stepped_meanwhile


class Slow(Core):
    """A step lasts until it is told to end; writes down what it was told, and when."""

    def __init__(self) -> None:
        super().__init__(patience=0.0)
        self.has_work = True
        self.told: list[str] = []
        self.begun, self.end = threading.Event(), threading.Event()

    def step(self) -> list[Completion]:
        self.begun.set()
        self.end.wait(60.0)
        self.told.append("step")
        self.has_work = False
        return [Completion("a", [], "stop")]

    def add(self, request: Request) -> None:
        self.told.append(f"add {request.id}")

    def abort(self, request_id: str) -> Completion | None:
        self.told.append(f"abort {request_id}")
        return Completion(request_id, [], "aborted") if request_id != "a" else None

    def release(self, trajectory: str) -> None:
        self.told.append(f"release {trajectory}")


def test_what_is_said_during_a_step_in_a_thread_waits_for_its_end() -> None:
    core = Slow()

    async def main(clock: Clock) -> list[str]:
        with ThreadPoolExecutor(1) as thread:
            loop = EngineLoop(core, MemoryStore(), clock, thread=thread)
            first = asyncio.ensure_future(loop.generate(request("a")))
            await clock.sleep(0)
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(loop.run())
                await asyncio.to_thread(core.begun.wait, 60.0)
                second = asyncio.ensure_future(loop.generate(request("b")))
                await clock.sleep(0)
                for id in ("a", "b"):
                    loop.abort(id)
                loop.release("a")
                assert core.told == ["add a"]
                standing = asyncio.ensure_future(loop.suspend())
                await clock.sleep(0)
                assert not standing.done()
                core.end.set()
                await standing
                finished = [(await first).finish, (await second).finish]
                running.cancel()
        return finished

    assert run_wall(main) == ["stop", "aborted"], "who had ended could not be aborted"
    assert core.told == ["add a", "step", "add b", "abort a", "abort b", "release a"]


class Timed(Core):
    """Each step computes 2 ms of contexts and 1 ms of answers, it says; the third ends a request under version 1."""

    def __init__(self) -> None:
        super().__init__(patience=0.0)
        self.counted = EngineStats()

    def step(self) -> list[Completion]:
        self.steps += 1
        now = self.counted
        self.counted = replace(
            now,
            busy_seconds=now.busy_seconds + 0.003,
            prefill_seconds=now.prefill_seconds + 0.002,
            version=self.steps // 3,
        )
        self.has_work = self.steps < 3
        return [] if self.has_work else [Completion("a", [], "stop")]

    def stats(self) -> EngineStats:
        return self.counted


@pytest.mark.parametrize(
    ("slowdown", "seconds", "prefill"),
    [
        (None, 0.0, 0.006),
        (Slowdown(prefill=4.0), 3 * 0.006, 0.024),
        (Slowdown(decode=11.0), 3 * 0.010, 0.006),
        (Slowdown(prefill=2.0, decode=3.0, exchange_at=1), 2 * (0.002 + 0.002) + (0.004 + 0.001), 2 * 0.004 + 0.006),
    ],
)
def test_a_slowed_engine_waits_and_counts_it_as_work(slowdown: Slowdown | None, seconds: float, prefill: float) -> None:
    async def main(clock: Clock) -> tuple[float, EngineStats]:
        loop = EngineLoop(Timed(), MemoryStore(), clock, slowdown=slowdown)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(loop.run())
            await loop.generate(request("a"))
            running.cancel()
        return clock.now(), await loop.stats()

    waited, stats = run_virtual(main)
    assert waited == pytest.approx(seconds)
    assert (stats.prefill_seconds, stats.busy_seconds) == pytest.approx((prefill, 0.009 + seconds))
