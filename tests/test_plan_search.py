"""The search of `rollweave plan`: its best candidate against all of them, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollweave.config.load import load_file
from rollweave.config.planning import PlanConfig
from rollweave.errors import ConfigError
from rollweave.simulation.planner.candidates import candidates, least_training
from rollweave.simulation.planner.estimate import Estimator
from rollweave.simulation.planner.search import assess, merit, plan
from rollweave.simulation.planner.words import why

SMALL: dict[str, Any] = {
    "model": "qwen3-8b",
    "workload": {"tasks": [{"preset": "gem-math"}]},
    "rollout": {"groups_per_step": 2, "group_size": 4},
    "offers": [{"device": "H800", "count": 4}, {"device": "H20", "count": 4}],
    "tensor_parallel": [1, 2],
    "alpha": [0.0, 1.0],
    "redundant_groups": [0.0],
}

CASES: dict[str, dict[str, Any]] = {
    "two kinds": {},
    "many short turns": {
        "workload": {
            "tasks": [
                {
                    "turns": {"type": "uniform", "low": 2, "high": 8},
                    "observation_tokens": {"type": "constant", "value": 2000},
                    "answer_tokens": {"type": "constant", "value": 40},
                    "step_seconds": {"type": "normal", "mean": 1.0, "std": 1.0},
                }
            ]
        }
    },
    "a budget": {"offers": [{"device": "H800"}, {"device": "H20"}], "budget": 25.0, "alpha": [1.0]},
    "dollars": {"objective": "cost", "offers": [{"device": "A100", "count": 6}], "redundant_groups": [0.0, 0.5]},
}


def config(**changes: Any) -> PlanConfig:
    return PlanConfig.model_validate_json(json.dumps({**SMALL, **changes}))


@pytest.mark.parametrize("case", CASES)
def test_the_best_is_within_three_percent_of_exhaustive_search(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollweave.simulation.planner.search.MOST", 10)
    monkeypatch.setattr("rollweave.simulation.planner.search.LONGEST", 12)
    small = config(**CASES[case])
    found = plan(small).choices
    estimator = Estimator(small)
    every = [assess(small, estimator(each)) for each in candidates(small)]
    assert len(found) < len(every) / 2, "else it proves nothing"
    best = min(merit(small, each)[0] for each in every)
    assert merit(small, found[0])[0] <= 1.03 * best


def test_a_plan_is_the_same_every_time() -> None:
    one, other = plan(config()), plan(config())
    assert [choice.candidate for choice in one.choices] == [choice.candidate for choice in other.choices]
    assert [choice.outcome.json() for choice in one.choices] == [choice.outcome.json() for choice in other.choices]


def test_no_candidate_is_beyond_the_budget_or_the_offer() -> None:
    limited = config(budget=20.0)
    for candidate in candidates(limited):
        assert candidate.price(limited) <= 20.0
        used = {"H800": 0, "H20": 0}
        used[candidate.train_device] += candidate.train_count
        for engines in candidate.rollout:
            used[engines.device] += engines.count
            assert engines.count % engines.tensor_parallel == 0
        assert max(used.values()) <= 4


def test_what_trains_holds_the_optimiser() -> None:
    large = config(model="qwen3-32b", offers=[{"device": "H800", "count": 16}], tensor_parallel=[])
    assert least_training(large, "H800") == 8, "32.76e9 x 16 bytes on devices of 72 usable GB"
    assert min(candidate.train_count for candidate in candidates(large)) == 8


def test_the_plan_says_why() -> None:
    result = plan(config())
    sentences = why(config(), result)
    assert any("idle" in sentence for sentence in sentences)
    assert any("H20" in sentence and "TB/s per $/h" in sentence for sentence in sentences)
    assert any("alpha" in sentence for sentence in sentences)


# -------------------------------------------------------------------------------------------------------- refusals


def test_a_model_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"qwen3-32b does not fit .* 66 GB .* 4 x L40S of 48 GB"):
        plan(config(model="qwen3-32b", offers=[{"device": "L40S", "count": 4}], tensor_parallel=[1]))


def test_a_budget_below_the_price_of_one_device_is_blamed_itself() -> None:
    """Not the devices' memory, which is large enough."""
    with pytest.raises(ConfigError, match=r"a budget of 1 \$/h is too little for qwen3-8b"):
        plan(config(budget=1.0))


def test_a_budget_that_buys_nothing_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"a budget of 5 \$/h is too little for qwen3-8b.*smallest cluster costs 5\.55"
    ):
        plan(config(budget=5.0, offers=[{"device": "H20"}]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offers": [{"device": "H801", "count": 4}]}, "no device class 'H801'.*H800"),
        ({"model": "qwen3-9b"}, "model 'qwen3-9b' is not in the catalogue.*qwen3-8b"),
        ({"judge": {"model": "qwen3-9b"}}, "judge.model 'qwen3-9b' is not in the catalogue.*qwen3-8b"),
        ({"offers": [{"device": "H20"}]}, "how many H20.*budget"),
        ({"offers": [{"device": "H20", "price": 0}], "budget": 5}, "H20 costs nothing, so no budget limits it"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_fix(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(json.dumps({**SMALL, **change}))
    with pytest.raises(ConfigError, match=words):
        load_file(file, PlanConfig)
