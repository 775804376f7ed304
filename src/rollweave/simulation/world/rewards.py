"""A modelled reward: takes a drawn time, fails for good with a given chance, hangs with another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rollweave.clock import Clock
from rollweave.errors import RewardFailed
from rollweave.seeds import generator
from rollweave.simulation.durations import NO_TIME, Duration
from rollweave.simulation.world.environment import StepRewards
from rollweave.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class RewardModel:
    seconds: Duration = NO_TIME
    failure_rate: float = 0.0
    """Chance that an episode cannot be scored at all."""
    hang_rate: float = 0.0
    """Chance that scoring it never returns."""


class SimulatedReward(StepRewards):
    """The sum of the step rewards, after a while, perhaps. What goes wrong depends on the attempt alone."""

    def __init__(self, model: RewardModel, clock: Clock, seed: int) -> None:
        self._model = model
        self._clock = clock
        self._seed = seed

    async def score(self, trajectory: Trajectory) -> None:
        rng = generator(self._seed, "reward", trajectory.id)
        draw = rng.random()
        if draw < self._model.hang_rate:
            await asyncio.get_running_loop().create_future()
        await self._clock.sleep(self._model.seconds(rng))
        if draw < self._model.hang_rate + self._model.failure_rate:
            raise RewardFailed("injected failure")
        await super().score(trajectory)
