"""Concurrency that follows KV pressure: the rule alone, then against an engine that thrashes above a knee."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.world.durations import constant
from tests.world.engine import SimulatedEngine
from tests.world.environment import ByteDialogue, StepRewards
from tests.world.world import World, simulate

from fleets import fleet_of, proxy_of
from rollweave.clock import Clock, run_virtual
from rollweave.config.control import RolloutConfig
from rollweave.config.job import Job
from rollweave.engines.protocol import Completion, EngineStats, Request, Sampling
from rollweave.environments.protocol import Observation, StepResult
from rollweave.observability.events import MemoryRecorder
from rollweave.rollout.concurrency import AdaptiveConcurrency, Pressure, decide
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.link import Lease, Report
from rollweave.rollout.manager import Stage
from rollweave.tasks import Task

CALM = Pressure(evictions=0, computed=1000, recomputed=0, running=10, waiting=0, playing=64)
THRASHING = Pressure(evictions=9, computed=1000, recomputed=900, running=10, waiting=3, playing=64)


def test_the_limit_grows_by_a_little_and_shrinks_by_a_quarter() -> None:
    assert decide(64, 8, 320, CALM) == 74
    assert decide(64, 8, 320, THRASHING) == 48


@pytest.mark.parametrize(
    ("why", "pressure"),
    [
        ("the last cut is not in effect yet", replace(THRASHING, playing=80)),
        ("the update rebuilt the caches, not an eviction", replace(THRASHING, updated=True)),
        ("a few evictions are harmless", replace(THRASHING, recomputed=20)),
        ("engines make requests wait already", replace(CALM, waiting=5)),
        ("something else keeps episodes away", replace(CALM, playing=40)),
        ("caches rebuilt without an eviction, and requests wait", replace(THRASHING, evictions=0)),
    ],
)
def test_when_nothing_is_changed(why: str, pressure: Pressure) -> None:
    assert decide(64, 8, 320, pressure) == 64, why


@given(
    st.integers(1, 500),
    st.integers(1, 50),
    st.integers(0, 500),
    *[st.integers(0, 1000) for _ in range(5)],
    st.booleans(),
)
def test_the_limit_stays_within_its_bounds(
    limit: int, floor: int, more: int, evicted: int, computed: int, again: int, waiting: int, playing: int, new: bool
) -> None:
    ceiling = floor + more
    limit = min(max(limit, floor), ceiling)
    decided = decide(limit, floor, ceiling, Pressure(evicted, computed, again, 1, waiting, playing, new))
    assert floor <= decided <= ceiling


# ------------------------------------------------------------------------------------------------------ the knee

KNEE = 40
CEILING = 160


class Thrashing(SimulatedEngine):
    """Holds the caches of `KNEE` trajectories. A trajectory that has lost its own computes it again, and all that do
    share the machine, so that above the knee every cache is gone before its trajectory's next turn."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, constant(0.2), lambda rng: 10)
        self._resident: dict[str, None] = {}
        self._seen: set[str] = set()
        self._computing = 0
        self._counted = EngineStats()
        self.turns = 0

    async def generate(self, request: Request) -> Completion:
        known = request.trajectory in self._resident
        self._resident.pop(request.trajectory, None)
        self._resident[request.trajectory] = None  # newest last
        if not known:
            await self._compute(request)
        completion = await super().generate(request)
        self.turns += 1
        return completion

    async def _compute(self, request: Request) -> None:
        if len(self._resident) > KNEE:
            self._resident.pop(next(iter(self._resident)))
            self._counted.evictions += 1
        again = request.trajectory in self._seen
        self._seen.add(request.trajectory)
        self._counted.recomputed_tokens += len(request.tokens) * again
        self._counted.prefilled_tokens += len(request.tokens) * (not again)
        self._computing += 1
        await self._clock.sleep(0.3 * self._computing)
        self._computing -= 1

    def release(self, trajectory: str) -> None:
        self._resident.pop(trajectory, None)
        super().release(trajectory)

    async def stats(self) -> EngineStats:
        mine = self._counted
        return replace(
            await super().stats(),
            evictions=mine.evictions,
            prefilled_tokens=mine.prefilled_tokens,
            recomputed_tokens=mine.recomputed_tokens,
        )


class ManyTurns:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = 5

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        return "begin"

    async def step(self, action: str) -> StepResult:
        await self._clock.sleep(3.0)
        self._left -= 1
        return StepResult("more", done=self._left == 0)

    async def close(self) -> None:
        pass


def run(seconds: float, *, limit: int | None = None) -> tuple[float, list[int]]:
    """Turns per second in the second half, and the limits over time. Without `limit` it is adapted."""

    async def main(clock: Clock) -> tuple[float, list[int]]:
        engine, dispatcher, recorder = Thrashing(clock), Dispatcher(), MemoryRecorder(clock.now)
        stage = Stage(
            clock=clock,
            proxy=proxy_of([engine]),
            environment=lambda task: ManyTurns(clock),
            dialogue=ByteDialogue(),
            scorer=StepRewards(),
            rollout=RolloutConfig(max_turns=100, max_context=10_000),
        )
        link = dispatcher.attach(lambda packet: host.link.receive(packet), CEILING)
        host = EnvHost(stage, link.receive)
        dispatcher.limit = limit
        numbers = itertools.count()

        def next_episode(lease: Lease | None = None, report: Report | None = None) -> None:
            number = next(numbers)
            again = Lease(str(number), number, 0, 0, Task("t", "t", number), number, Sampling(), 0)
            dispatcher.submit([again], next_episode)

        adaptive = AdaptiveConcurrency(fleet_of([engine]), dispatcher, clock, recorder, floor=4, ceiling=CEILING)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(host.run())]
            if limit is None:
                running.append(tasks.create_task(adaptive.run()))
            for _ in range(CEILING + 1):
                next_episode()
            await clock.sleep(seconds / 2)
            half = engine.turns
            await clock.sleep(seconds / 2)
            for task in running:
                task.cancel()
        limits = [event.data["limit"] for event in recorder.named("concurrency.change")]
        return (engine.turns - half) / (seconds / 2), limits

    return run_virtual(main)


def test_it_finds_the_knee_and_throughput_does_not_collapse() -> None:
    best, _ = run(400.0, limit=KNEE)
    collapsed, _ = run(400.0, limit=CEILING)
    adapted, limits = run(2400.0)
    settled = limits[len(limits) // 2 :]
    assert collapsed < 0.7 * best, "the model has a knee"
    assert adapted > 0.85 * best
    assert min(settled) >= 0.5 * KNEE and max(settled) <= 1.5 * KNEE


def test_a_job_that_asks_for_it_is_adapted_and_ends_as_usual() -> None:
    numbers = {"groups_per_step": 4, "group_size": 4, "environments": 16, "concurrency": "adaptive"}
    job = Job.model_validate(
        {
            "model": {"type": "tiny"},
            "environment": {"type": "frozen_lake"},
            "rollout": numbers,
            "training": {"steps": 4},
            "evaluation": {"every": 0},
        }
    )
    world = World(token_seconds=constant(2.0))
    done = run_virtual(lambda clock: simulate(job, world, clock))
    assert len(done.rows) == 4
    assert not done.recorder.named("concurrency.change"), "nothing was evicted"
    assert [event.data["limit"] for event in done.recorder.named("concurrency.begin")] == [16]
