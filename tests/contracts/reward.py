"""What every reward owes a trajectory: a finite number or a failure, and nothing of the trajectory is changed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from rollweave.errors import RewardFailed
from rollweave.rewards.scorer import NamedReward
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory, token_ids


@dataclass(frozen=True, slots=True)
class RewardUnderTest:
    """A way to write a reward: functions of a trajectory, as they stand in a user's file."""

    good: Callable[[Trajectory], Any]
    """Scores the answer of `played("4")`."""
    expected: float
    failing: tuple[Callable[[Trajectory], Any], ...]
    """Those that cannot score it: they raise, or return what is no finite number."""


def played(*answers: str) -> Trajectory:
    """An episode whose task expects `4`."""
    trajectory = Trajectory("17.3.0", 17, 3, Task("row/0", "prompts", 0, {"answer": "4"}))
    for answer in answers:
        trajectory.observe(token_ids([1, 2]))
        trajectory.answer([], answer, "stop")
        trajectory.turns[-1].reward = 0.25
    return trajectory


def score(function: Callable[[Trajectory], Any], trajectory: Trajectory) -> float:
    """Called and checked as a run does it."""

    async def main() -> float:
        return (await NamedReward("mine", function, 1.0, "mine.py:score")(trajectory)).value

    return asyncio.run(main())


def it_is_the_number_that_the_function_says(kind: RewardUnderTest) -> None:
    value = score(kind.good, played("no idea", "4"))
    assert type(value) is float and math.isfinite(value)
    assert value == kind.expected


def scoring_again_gives_the_same(kind: RewardUnderTest) -> None:
    """After a crash a trajectory is scored again."""
    trajectory = played("4")
    assert score(kind.good, trajectory) == score(kind.good, trajectory)


def the_trajectory_is_left_as_it_was(kind: RewardUnderTest) -> None:
    trajectory = played("4")
    before = deepcopy(trajectory)
    score(kind.good, trajectory)
    texts = [[turn.text for turn in each.turns] for each in (trajectory, before)]
    assert texts[0] == texts[1]
    assert [turn.reward for turn in trajectory.turns] == [turn.reward for turn in before.turns]
    assert (trajectory.rewards, trajectory.info, trajectory.outcome) == ({}, {}, None)
    assert list(trajectory.tokens()) == list(before.tokens())


def what_cannot_be_scored_is_a_failure_with_its_cause_and_never_a_zero(kind: RewardUnderTest) -> None:
    for function in kind.failing:
        trajectory = played("4")
        with pytest.raises(RewardFailed, match=r"17\.3\.0|row/0"):
            score(function, trajectory)
        assert trajectory.rewards == {}


def trajectories_are_scored_side_by_side_as_alone(kind: RewardUnderTest) -> None:
    async def main() -> list[float]:
        reward = NamedReward("mine", kind.good, 1.0, "mine.py:score")
        answers = [played(answer) for answer in ("4", "no idea", "4")]
        return [result.value for result in await asyncio.gather(*map(reward, answers))]

    assert asyncio.run(main()) == [score(kind.good, played(answer)) for answer in ("4", "no idea", "4")]


BEHAVIOURS: tuple[Callable[[RewardUnderTest], None], ...] = (
    it_is_the_number_that_the_function_says,
    scoring_again_gives_the_same,
    the_trajectory_is_left_as_it_was,
    what_cannot_be_scored_is_a_failure_with_its_cause_and_never_a_zero,
    trajectories_are_scored_side_by_side_as_alone,
)
