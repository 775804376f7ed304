"""Emulated latency: drawn as configured, on the run's clock, alike in every run; no other environment waits."""

from __future__ import annotations

import asyncio
from statistics import fmean
from typing import Any

import pytest

from rollweave.clock import Clock, run_virtual, run_wall
from rollweave.config.environments import FrozenLakeConfig, LatencyConfig, MixtureConfig, MixtureMember
from rollweave.environments.adapt import adapt
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.latency import LateEnvironments, latencies
from rollweave.environments.protocol import HasScriptedAction
from rollweave.tasks import Task


class Quick:
    def reset(self, seed: int) -> str:
        return "go"

    def step(self, action: str) -> tuple[str, float, bool]:
        return "on", 0.0, False


def task(seed: int, environment: str = "quick") -> Task:
    return Task(f"{environment}/{seed}", environment, seed)


def quick(task: Task) -> HasScriptedAction:
    return adapt(Quick())


async def call_times(environment: Any, clock: Clock, steps: int) -> list[float]:
    """How long reset and each step took."""
    times, before = [], clock.now()
    for turn in range(steps + 1):
        await (environment.step("x") if turn else environment.reset(1, {}))
        times.append(clock.now() - before)
        before = clock.now()
    return times


def group_times(members: int, steps: int, mean: float, std: float, seed: int = 1) -> list[list[float]]:
    async def play(clock: Clock) -> list[list[float]]:
        make = LateEnvironments(quick, {"quick": LatencyConfig(mean=mean, std=std)}, clock)
        return await asyncio.gather(*(call_times(make(task(seed)), clock, steps) for _ in range(members)))

    return run_virtual(play)


def test_every_call_takes_its_drawn_time_cut_at_zero() -> None:
    times = [seconds for member in group_times(8, 500, 0.3, 0.3) for seconds in member]
    assert min(times) == 0.0
    assert fmean(times) == pytest.approx(0.325, abs=0.01), "the mean of a normal(0.3, 0.3) that was cut at 0"
    assert fmean(seconds == 0.0 for seconds in times) == pytest.approx(0.159, abs=0.02)


def test_without_spread_it_is_a_constant() -> None:
    assert group_times(2, 3, 0.25, 0.0) == [[pytest.approx(0.25)] * 4] * 2


def test_a_seed_fixes_it_and_members_of_a_group_differ() -> None:
    once, again, other = (group_times(2, 10, 0.3, 0.3, seed) for seed in (1, 1, 2))
    assert once == again
    assert once != other
    assert once[0] != once[1]


def test_members_wait_beside_each_other() -> None:
    async def play(clock: Clock) -> float:
        make = LateEnvironments(quick, {"quick": LatencyConfig(mean=1.0)}, clock)
        await asyncio.gather(*(call_times(make(task(seed)), clock, steps=2) for seed in range(50)))
        return clock.now()

    assert run_virtual(play) == pytest.approx(3.0)


def test_who_has_none_is_as_fast_as_ever() -> None:
    async def play(clock: Clock) -> float:
        make = LateEnvironments(quick, {"slow": LatencyConfig(mean=1.0)}, clock)
        await call_times(make(task(1, "quick")), clock, steps=5)
        return clock.now()

    assert run_virtual(play) == 0.0


def test_a_mixture_has_the_latencies_of_its_members() -> None:
    slow = FrozenLakeConfig(type="frozen_lake", latency=LatencyConfig(mean=0.5))
    fast = FrozenLakeConfig(type="frozen_lake")
    mixture = MixtureConfig(
        type="mixture", of=(MixtureMember(environment=slow, name="slow"), MixtureMember(environment=fast, name="fast"))
    )
    assert latencies(mixture) == {"slow": LatencyConfig(mean=0.5)}
    assert latencies(fast) == {}


def test_the_processes_behind_it_are_closed_with_it() -> None:
    async def play(clock: Clock) -> tuple[float, bool]:
        pool = EnvironmentPool(quick, per_process=2)
        make = LateEnvironments(pool, {"quick": LatencyConfig(mean=1e-4)}, clock)
        environment = make(task(1))
        await environment.reset(1, {})
        result = await environment.step("x")
        await make.close()
        return result.reward, any(child.alive for child in pool.children)

    assert run_wall(play) == (0.0, False)
