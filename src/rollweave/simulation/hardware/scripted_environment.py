"""An environment that plays what the workload wrote, and the rule that scores it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rollweave.clock import Clock
from rollweave.environments.protocol import Observation, StepResult
from rollweave.errors import EnvironmentFailed
from rollweave.simulation.hardware.judge import Judge
from rollweave.simulation.hardware.script import observation
from rollweave.simulation.workloads.episode import NEVER, Episode
from rollweave.simulation.workloads.source import Workload
from rollweave.simulation.world.environment import StepRewards
from rollweave.trajectory import Trajectory


class ScriptedEnvironment:
    def __init__(self, episode: Episode, clock: Clock) -> None:
        self._episode = episode
        self._clock = clock
        self._turn = 0

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        await self._clock.sleep(0)  # even a reset in no time lets the others of the batch begin
        await self._take(self._episode.reset_seconds, -1)
        return observation(self._episode.observations[0], self._episode.answers[0])

    async def step(self, action: str) -> StepResult:
        episode, turn = self._episode, self._turn
        seconds = episode.step_seconds[turn]
        if 0 < seconds < NEVER and turn != episode.failing_step:
            await self._clock.sleep(seconds)
        else:
            await self._take(seconds, turn)
        self._turn = turn = turn + 1
        if turn == len(episode.answers):
            return StepResult("", episode.reward, done=True)
        return StepResult(observation(episode.observations[turn], episode.answers[turn]))

    async def close(self) -> None:
        pass

    async def _take(self, seconds: float, call: int) -> None:
        if seconds == NEVER:
            await asyncio.get_running_loop().create_future()
        if seconds > 0:
            await self._clock.sleep(seconds)
        if call == self._episode.failing_step:
            raise EnvironmentFailed("injected failure")


class WorkloadRewards(StepRewards):
    """The environment's reward, after the time that a rule or the judge takes for it."""

    def __init__(self, workload: Workload, judge: Judge | None, clock: Clock) -> None:
        self._workload = workload
        self._judge = judge
        self._clock = clock

    async def score(self, trajectory: Trajectory) -> None:
        if self._judge is not None and self._workload.judged(trajectory.task):
            await self._judge.score(trajectory)
        else:
            seconds = self._workload.reward_seconds(trajectory)
            if seconds > 0:
                await self._clock.sleep(seconds)
        await super().score(trajectory)
