"""`rollweave plan` through the command: what it prints holds in a long simulation of its own choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollweave.cli.main import app

MATH = {"tasks": [{"preset": "gem-math"}]}

PLAN: dict[str, Any] = {
    "model": "qwen3-8b",
    "workload": MATH,
    "rollout": {"groups_per_step": 4, "group_size": 4},
    "offers": [{"device": "H800", "count": 8}],
    "alpha": [1.0],
    "redundant_groups": [0.0],
}

CASES: dict[str, dict[str, Any]] = {
    "math, 8B, two kinds": {"offers": [{"device": "H800", "count": 8}, {"device": "H20", "count": 8}]},
    "math, 32B, alpha 2": {
        "model": "qwen3-32b",
        "rollout": {"groups_per_step": 8, "group_size": 8},
        "offers": [{"device": "H100", "count": 32}],
        "alpha": [2.0],
    },
    "web, 8B, any alpha": {
        "workload": {"tasks": [{"preset": "webshop"}]},
        "offers": [{"device": "H20", "count": 16}],
        "alpha": [0.0, 1.0, 2.0],
    },
    "long answers, 32B, take turns": {
        "model": "qwen3-32b",
        "workload": {"tasks": [{"preset": "gem-game"}, {"preset": "rlvr-code"}]},
        "rollout": {"groups_per_step": 16, "group_size": 8},
        "offers": [{"device": "H800", "count": 64}],
        "alpha": [0.0],
    },
    "software, 32B": {
        "model": "qwen3-32b",
        "workload": {"tasks": [{"preset": "swe-bench"}]},
        "rollout": {"groups_per_step": 12, "group_size": 4},
        "offers": [{"device": "H100", "count": 16}],
        "tensor_parallel": [2],
    },
    "a lead that shrinks, alpha 2": {
        "workload": {"tasks": [{"preset": "rlvr-math"}]},
        "rollout": {"groups_per_step": 32, "group_size": 8},
        "offers": [{"device": "H20", "count": 32}],
        "alpha": [2.0],
        "tensor_parallel": [4],
    },
}


@pytest.fixture(autouse=True)
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test takes seconds: what is printed of the best is under test, not how good the best is."""
    monkeypatch.setattr("rollweave.simulation.planner.search.MOST", 6)


def run(folder: Path, *arguments: str, **changes: Any) -> str:
    file = folder / "plan.yaml"
    file.write_text(json.dumps({**PLAN, **changes}))
    done = CliRunner().invoke(app, ["plan", str(file), *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def simulated(folder: Path, best: dict[str, Any], steps: int, warmup: int, **changes: Any) -> dict[str, Any]:
    """What `rollweave simulate` says of the candidate, on the cluster that was written."""
    case = {**PLAN, **changes}
    scenario = {
        **{key: case[key] for key in ("model", "workload")},
        "training": {"steps": steps},
        "warmup": warmup,
        "rollout": {**case["rollout"], "redundant_groups": best["redundant_groups"]},
        "pipeline": {"type": "rollart", "alpha": best["alpha"]} if best["alpha"] else {"type": "sync+"},
        "cluster": "cluster.yaml",
    }
    file = folder / "scenario.yaml"
    file.write_text(json.dumps(scenario))
    done = CliRunner().invoke(app, ["simulate", str(file), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_figure_of_the_best_is_that_of_thirty_steps(case: str, tmp_path: Path) -> None:
    planned = json.loads(run(tmp_path, "--json", "-o", str(tmp_path / "cluster.yaml"), **CASES[case]))
    best = planned["candidates"][0]
    long = simulated(tmp_path, best, 30, 1, **CASES[case])
    assert best["tokens_per_second"] == pytest.approx(long["tokens_per_second"], rel=0.1)
    assert 0.0 < best["margin"] < 0.25


def test_whole_periods_are_measured_after_one_that_is_not(tmp_path: Path) -> None:
    best = json.loads(run(tmp_path, "--json", "-o", str(tmp_path / "cluster.yaml"), alpha=[2.0]))["candidates"][0]
    assert best["measured_steps"] % 3 == 0
    again = simulated(tmp_path, best, 3 + best["measured_steps"], 3)
    assert again["step_seconds"] == pytest.approx(best["step_seconds"])
    assert again["throughput_margin"] == pytest.approx(best["margin"])


def test_the_interval_stands_beside_the_figure(tmp_path: Path) -> None:
    head, first, *_ = run(tmp_path).splitlines()
    assert head.index("tokens/s") < head.index("±") < head.index("$/h")
    assert first[: head.index("±") + 1].endswith("%")


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": [1.0], "redundant_groups": [0.0, 0.25]},  # at alpha 1 there is room for them anyway
        {"alpha": [0.0], "redundant_groups": [0.25, 0.45]},  # one group more, either way
    ],
)
def test_no_two_rows_differ_in_nothing(settings: dict[str, Any], tmp_path: Path) -> None:
    few = {"offers": [{"device": "H800", "count": 4}], "tensor_parallel": [1]}
    rollout = {"groups_per_step": 2, "group_size": 4, "environments": 100}
    found = json.loads(run(tmp_path, "--json", "--top", "24", rollout=rollout, **few, **settings))["candidates"]
    decisions = [(row["train"], row["rollout"], row["alpha"]) for row in found]
    assert len(decisions) == 2
    assert decisions[0] != decisions[1], "redundancy changes nothing here"


def test_a_recorded_run_can_be_planned_for(tmp_path: Path) -> None:
    turns = [{"observation_tokens": 200, "versions": [[0, 900]], "seconds": {"environment": 0.5}}] * 2
    row = {"task": "recorded/1", "outcome": "finished", "reward": 1.0, "turns": turns}
    (tmp_path / "trajectories.jsonl").write_text(json.dumps(row) + "\n")
    planned = json.loads(run(tmp_path, "--json", workload={"trace": "."}))
    best = planned["candidates"][0]
    per_step = best["tokens_per_second"] * best["step_seconds"]
    assert per_step == pytest.approx(16 * 2 * (200 + 900)), "16 episodes as long as the recorded one"


@pytest.mark.parametrize("workload", [{}, {"trace": ".", "tasks": [{"preset": "gem-math"}]}])
def test_a_plan_wants_tasks_or_a_trace(workload: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(json.dumps({**PLAN, "workload": workload}))
    done = CliRunner().invoke(app, ["plan", str(file)])
    assert done.exit_code != 0
    assert "either tasks or a trace" in done.output + str(done.exception)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_slow_weight_path_is_named_instead_of_more_engines(alpha: float, tmp_path: Path) -> None:
    slow = json.loads(run(tmp_path, "--json", alpha=[alpha], constants={"push_bandwidth": 0.02}))
    assert "faster way for the weights" in slow["why"][0]
    assert "engines would shorten" not in slow["why"][0]
    quick = json.loads(run(tmp_path, "--json", alpha=[alpha], constants={"push_bandwidth": 200.0}))
    assert "faster way for the weights" not in quick["why"][0]
