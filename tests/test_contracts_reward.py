"""Every way to write a reward keeps the contract of rewards."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from contracts.reward import BEHAVIOURS, RewardUnderTest
from rollweave.rewards import rules
from rollweave.rewards.scorer import RewardResult
from rollweave.trajectory import Trajectory

WRONG = (None, math.nan, math.inf, "1.0", [1.0])


def right(trajectory: Trajectory) -> int:
    return int(trajectory.turns[-1].text == "4")


def in_parts(trajectory: Trajectory) -> RewardResult:
    return RewardResult(right(trajectory) - 0.5, {"style": 0.5})


def raises(trajectory: Trajectory) -> Any:
    return trajectory.task.data["missing"]


def later(function: Callable[[Trajectory], Any]) -> Callable[[Trajectory], Any]:
    async def score(trajectory: Trajectory) -> Any:
        await asyncio.sleep(0)
        return function(trajectory)

    return score


def returns(value: Any) -> Callable[[Trajectory], Any]:
    return lambda trajectory: value


class Callables:
    def __call__(self, trajectory: Trajectory) -> float:
        return float(right(trajectory))


FAILING = (raises, *map(returns, WRONG))
MISSING = {"column": "missing"}
KINDS = {
    **{
        rule.__name__: RewardUnderTest(rule, 1.0, (partial(rule, **MISSING),))
        for rule in (rules.exact_match, rules.contains, rules.regex_match, rules.numeric_match)
    },
    "function": RewardUnderTest(right, 1.0, FAILING),
    "result": RewardUnderTest(in_parts, 0.5, tuple(returns(RewardResult(value)) for value in WRONG)),
    "object": RewardUnderTest(Callables(), 1.0, FAILING),
    "async-function": RewardUnderTest(later(right), 1.0, tuple(map(later, FAILING))),
    "async-result": RewardUnderTest(later(in_parts), 0.5, (later(raises),)),
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_reward_keeps_the_contract(kind: str, behaviour: Callable[[RewardUnderTest], None]) -> None:
    behaviour(KINDS[kind])
