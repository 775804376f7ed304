"""A modelled environment and its reward: drawn turn counts and latencies, injected failures and hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.world.durations import NO_TIME, Duration

from rollweave.clock import Clock
from rollweave.environments.protocol import Observation, StepResult
from rollweave.errors import EnvironmentFailed, RewardFailed
from rollweave.seeds import generator
from rollweave.trajectory import TokenIds, Trajectory, token_ids


def coin(task: Random, answer: Random) -> float:
    """One half of the episodes succeed."""
    return float(answer.random() < 0.5)


@dataclass(frozen=True, slots=True)
class EnvironmentModel:
    turns: Callable[[Random], int]
    """Of an episode, drawn by its task: the members of a group take the same number."""
    reward: Callable[[Random, Random], float] = coin
    """Of a finished episode, drawn by its task and by its last answer."""
    reset_seconds: Duration = NO_TIME
    step_seconds: Duration = NO_TIME
    failure_rate: float = 0.0
    """Chance that a call raises."""
    hang_rate: float = 0.0
    """Chance that a call never returns."""


class SimulatedEnvironment:
    """Each instance draws its own faults: a retry with a fresh one may succeed where the first failed."""

    def __init__(self, model: EnvironmentModel, clock: Clock, instance_seed: int) -> None:
        self._model = model
        self._clock = clock
        self._faults = generator(instance_seed, "faults")

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        self._seed = seed
        self._turns_left = max(1, self._model.turns(generator(seed, "episode")))
        await self._take(self._model.reset_seconds)
        return "observation"

    async def step(self, action: str) -> StepResult:
        await self._take(self._model.step_seconds)
        self._turns_left -= 1
        if self._turns_left > 0:
            return StepResult("observation")
        reward = self._model.reward(generator(self._seed, "task"), generator(self._seed, "answer", action))
        return StepResult("observation", reward, done=True)

    async def close(self) -> None:
        pass

    async def _take(self, seconds: Duration) -> None:
        draw = self._faults.random()
        if draw < self._model.hang_rate:
            await asyncio.get_running_loop().create_future()
        await self._clock.sleep(seconds(self._faults))
        if draw < self._model.hang_rate + self._model.failure_rate:
            raise EnvironmentFailed("injected failure")


class ByteDialogue:
    """Renders observations as bytes: enough for engines that do not read them."""

    def open(self, observation: Observation) -> TokenIds:
        return token_ids(str(observation).encode())

    def reply(self, observation: Observation, answered_end: bool) -> TokenIds:
        return self.open(observation)

    def ended(self, answer: TokenIds) -> bool:
        return True


class StepRewards:
    """Scores a trajectory by the sum of its step rewards."""

    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        return ()

    async def score(self, trajectory: Trajectory) -> None:
        trajectory.rewards = {"environment": sum(turn.reward for turn in trajectory.turns)}


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A reward that takes a drawn time, fails for good with a given chance, hangs with another."""

    seconds: Duration = NO_TIME
    failure_rate: float = 0.0
    """Chance that an episode cannot be scored at all."""
    hang_rate: float = 0.0
    """Chance that scoring it never returns."""

    @property
    def takes_time(self) -> bool:
        return self != RewardModel()


class SimulatedReward(StepRewards):
    """The sum of the step rewards, after a while, perhaps. What goes wrong depends on the attempt alone."""

    def __init__(self, model: RewardModel, clock: Clock, seed: int) -> None:
        self._model = model
        self._clock = clock
        self._seed = seed

    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        return ("modelled",) if self._model.takes_time else ()

    async def score(self, trajectory: Trajectory) -> None:
        rng = generator(self._seed, "reward", trajectory.id)
        draw = rng.random()
        if draw < self._model.hang_rate:
            await asyncio.get_running_loop().create_future()
        await self._clock.sleep(self._model.seconds(rng))
        if draw < self._model.hang_rate + self._model.failure_rate:
            raise RewardFailed("injected failure")
        await super().score(trajectory)
