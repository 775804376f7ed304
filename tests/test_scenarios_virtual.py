"""What redundancy and filtering cost, measured on the virtual clock: the numbers the mechanisms were made for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

import pytest
from tests.world.durations import constant, lognormal
from tests.world.environment import EnvironmentModel, coin
from tests.world.world import SimulatedRun, World

from rollweave.rollout.staleness import GroupFilter
from virtual_oracles import data, trained
from virtual_worlds import make_job, rollart, run

SEEDS = range(3)


@dataclass
class Measured:
    """Means over seeds, without the first steps."""

    groups_played: float
    """A second: complete or filtered."""
    groups_trained: float
    """A second."""
    kept_share: float
    """Of the groups that were played, those the filter kept."""
    wasted: float
    """Share of the tokens that attempts ended with."""
    bias: float
    """Of the durations that were trained against those that were started."""


def measure(pipeline: dict[str, Any], steps: int, step_seconds: float, reward: Any = coin, **rollout: Any) -> Measured:
    """Episodes whose turns and whose steps are both heavy-tailed; `step_seconds` is the sigma of the latter."""
    environment = EnvironmentModel(
        turns=lambda rng: max(1, round(rng.lognormvariate(0.7, 0.6))),
        step_seconds=lognormal(0.5, step_seconds),
        reward=reward,
    )
    world = World(environment=environment, token_seconds=constant(0.02), train_seconds=constant(0.2))
    numbers = {"deadlines": {"env_step": 1e6, "get_batch": 1e6}, "max_turns": 20, **rollout}
    runs = [
        _measure(run(make_job(pipeline, seed, steps, **numbers), world), numbers["groups_per_step"]) for seed in SEEDS
    ]
    return Measured(*(fmean(values) for values in zip(*runs, strict=True)))


def _measure(result: SimulatedRun, groups_per_step: int) -> tuple[float, ...]:
    taken = [event.time for event in result.recorder.named("batch.ready")]
    begin, end, steps = taken[3], taken[-1], len(taken) - 4
    complete, filtered = (
        sum(begin < event.time <= end for event in result.recorder.named(name))
        for name in ("group.complete", "group.filtered")
    )
    tokens: Counter[str] = Counter()
    for event in data(result, "attempt.end"):
        tokens[event["end"]] += event["tokens"]
    seconds = end - begin
    return (
        (complete + filtered) / seconds,
        steps * groups_per_step / seconds,
        complete / (complete + filtered),
        1 - tokens["trained"] / tokens.total(),
        float(result.rows[-1]["bias/duration"]),  # type: ignore[arg-type]
    )


# ------------------------------------------------------------------------------------------------------ redundancy

HEAVY = {"steps": 24, "step_seconds": 1.5, "groups_per_step": 8, "group_size": 4, "environments": 8}


def test_a_quarter_more_groups_at_alpha_1_waste_little_and_bias_nothing() -> None:
    """ROLL measured 21 to 22 % of waste: it throws surplus away that could still be trained."""
    plain, more = measure(rollart(1), **HEAVY), measure(rollart(1), redundant_groups=0.25, **HEAVY)
    assert more.wasted < 0.12
    assert abs(more.bias) < 0.03
    assert more.groups_trained > 1.05 * plain.groups_trained, "and it is worth something"


def test_surplus_that_nobody_can_train_any_more_is_wasted_and_biased() -> None:
    """The same at alpha = 0, where nothing can be carried over: that the measure above shows something."""
    thrown_away = measure(rollart(0), redundant_groups=0.25, **HEAVY | {"environments": 40})
    assert thrown_away.wasted > 0.12
    assert thrown_away.bias < -0.03


# -------------------------------------------------------------------------------------------------------- filtering


def one_in_ten(task: Random, answer: Random) -> float:
    """Nine tasks of ten give every member the same."""
    return answer.random() if task.random() < 0.1 else 0.0


def filtering(environments: int) -> tuple[Measured, Measured]:
    numbers = {"step_seconds": 0.5, "groups_per_step": 4, "group_size": 4, "environments": environments}
    everything = measure(rollart(1), steps=30, **numbers)
    return everything, measure(rollart(1), steps=12, filter="zero_variance", reward=one_in_ten, **numbers)


def test_with_nine_groups_of_ten_filtered_throughput_falls_in_proportion() -> None:
    """Environments are what is scarce here: all of them stay busy, so one group in ten is trained."""
    everything, filtered = filtering(environments=8)
    assert filtered.kept_share == pytest.approx(0.1, abs=0.05)
    assert filtered.groups_trained == pytest.approx(everything.groups_trained * filtered.kept_share, rel=0.1)
    assert filtered.groups_played > 0.9 * everything.groups_played


def test_filtered_groups_are_replaced_by_as_many_as_environments_allow() -> None:
    """Environments stand idle without a filter: over-issue makes use of them, and throughput falls by less."""
    everything, filtered = filtering(environments=64)
    assert filtered.groups_played > 2.5 * everything.groups_played


def test_without_over_issue_it_would_fall_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the test above shows something: filtered groups are replaced one for one."""
    monkeypatch.setattr(GroupFilter, "survivors", 1.0)
    everything, filtered = filtering(environments=64)
    assert filtered.groups_played < 2 * everything.groups_played


def test_what_is_filtered_is_never_trained() -> None:
    environment = EnvironmentModel(turns=lambda rng: rng.randint(1, 3), reward=one_in_ten)
    result = run(make_job(rollart(1), filter="zero_variance"), World(environment=environment))
    for batch in result.trainer.batches:
        assert all(len({member.reward for member in group.members}) > 1 for group in batch.groups)
    kept = {trajectory.group for trajectory in trained(result)}
    assert not kept & {event["group"] for event in data(result, "group.filtered")}
