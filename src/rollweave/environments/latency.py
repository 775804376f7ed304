"""Adds a latency to environments, so that benchmarks can use a fast environment in place of a slow one.

The wait is added in the host, before `reset` and `step`, on the clock of the run. So it delays only its own episode,
with and without process isolation, and costs nothing on the virtual clock. It is part of the call, so it counts
towards the call's deadline. The warm start, which no benchmark measures, does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any

from rollweave.clock import Clock
from rollweave.config.environments import EnvironmentConfig, LatencyConfig
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.protocol import HasScriptedAction, MakeEnvironment, Observation, StepResult
from rollweave.environments.registry import members
from rollweave.seeds import generator
from rollweave.tasks import Task

REMEMBERED_TASKS = 4096
"""Far more than the number of tasks that run at once."""


class LateEnvironments:
    """Makes environments as `make` does, each with its configured latency.

    The members of a group draw their waits from one stream, which the task's seed determines. So the waits of
    different members are independent, and the waits of a task have the same sum in every run.
    """

    def __init__(self, make: MakeEnvironment, latencies: Mapping[str, LatencyConfig], clock: Clock) -> None:
        self._make = make
        self._latencies = latencies
        self._clock = clock
        self._stream = lru_cache(REMEMBERED_TASKS)(lambda seed: generator(seed, "latency"))

    def __call__(self, task: Task) -> HasScriptedAction:
        environment = self._make(task)
        latency = self._latencies.get(task.environment)
        if latency is None:
            return environment
        return LateEnvironment(environment, latency, self._clock, self._stream(task.seed))

    async def close(self) -> None:
        if isinstance(self._make, EnvironmentPool):
            await self._make.close()


class LateEnvironment:
    """An environment whose `reset` and `step` begin with a wait."""

    def __init__(self, inner: HasScriptedAction, latency: LatencyConfig, clock: Clock, stream: Random) -> None:
        self._inner = inner
        self.interruptible = getattr(inner, "interruptible", True)
        self._latency = latency
        self._clock = clock
        self._stream = stream

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        await self._wait()
        return await self._inner.reset(seed, data)

    async def step(self, action: str) -> StepResult:
        await self._wait()
        return await self._inner.step(action)

    async def scripted_action(self, seed: int) -> str:
        return await self._inner.scripted_action(seed)

    async def close(self) -> None:
        await self._inner.close()

    async def _wait(self) -> None:
        await self._clock.sleep(max(0.0, self._stream.gauss(self._latency.mean, self._latency.std)))


def latencies(config: EnvironmentConfig) -> dict[str, LatencyConfig]:
    """The latencies of a job's environments, by the environment name in their tasks."""
    return {name: member.latency for name, member in members(config).items() if member.latency is not None}
