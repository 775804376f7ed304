"""Scores a finished trajectory: the sum of its step rewards, plus the functions the job names, each times its weight.

This is the boundary to user code: a function that raises or returns anything but a finite number makes the
attempt `reward-failed`, with the function, the value and the fix in the message. It is never a reward of 0.

What a reward is: a function of a finished trajectory.

    def score(trajectory: Trajectory) -> float: ...

It may be `async`, and may return a `RewardResult` to name its parts. It should be pure: a trajectory can be
scored again after a crash. Raising makes the attempt `reward-failed`: it is left out of its group and counted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollweave.config.job import RewardConfig
from rollweave.environments.adapt import as_number
from rollweave.errors import ConfigError, RewardFailed
from rollweave.targets import blame, load_target
from rollweave.trajectory import Trajectory


@dataclass(slots=True)
class RewardResult:
    value: float
    parts: dict[str, float] = field(default_factory=dict)
    """Shown in transcripts; not added to `value`."""


ENVIRONMENT = "environment"
"""The name of the step rewards' sum among a trajectory's rewards."""


class NamedReward:
    """One function of the job, called and checked."""

    def __init__(self, name: str, function: Callable[[Trajectory], Any], weight: float, target: str) -> None:
        self.name = name
        self.function = function
        self.weight = weight
        self.target = target

    @classmethod
    def load(cls, config: RewardConfig, base: Path) -> NamedReward:
        function = load_target(config.function, base)
        if not callable(function):
            raise ConfigError(f"{config.function} is a {type(function).__name__}: name a function of a trajectory")
        return cls(config.name or config.function.rpartition(":")[2], function, config.weight, config.function)

    async def __call__(self, trajectory: Trajectory) -> RewardResult:
        value = await self._call(trajectory)
        result = value if isinstance(value, RewardResult) else RewardResult(value)
        number = as_number(result.value)
        if number is None:
            raise RewardFailed(
                f"{self.target} returned {value!r} for {trajectory.id}: a reward must be a finite number; "
                "return one on every path, or raise an exception if the trajectory cannot be scored"
            )
        return RewardResult(number, result.parts)

    async def _call(self, trajectory: Trajectory) -> Any:
        try:
            value = self.function(trajectory)
            return await value if inspect.isawaitable(value) else value
        except RewardFailed:
            raise
        except (Exception, SystemExit) as error:  # the boundary: a user's function may raise anything
            file = getattr(getattr(self.function, "__code__", None), "co_filename", None)
            raise RewardFailed(f"{self.target} raised for {trajectory.id}: {blame(error, file)}") from error


class Scorer:
    """Fills in `trajectory.rewards` by name, weighted; parts that functions name go to `info["reward_parts"]`."""

    def __init__(self, rewards: Sequence[RewardConfig], base: Path, given: Sequence[NamedReward] = ()) -> None:
        self.rewards = [*(NamedReward.load(config, base) for config in rewards), *given]
        taken = {ENVIRONMENT}
        for reward in self.rewards:
            if reward.name in taken:
                raise ConfigError(f"rewards: two are called {reward.name!r}: give {reward.target} another `name`")
            taken.add(reward.name)

    async def score(self, trajectory: Trajectory) -> None:
        scores = {ENVIRONMENT: sum(turn.reward for turn in trajectory.turns)}
        parts: dict[str, dict[str, float]] = {}
        for reward in self.rewards:
            result = await reward(trajectory)
            scores[reward.name] = reward.weight * result.value
            if result.parts:
                parts[reward.name] = result.parts
        trajectory.rewards = scores
        if parts:
            trajectory.info["reward_parts"] = parts
