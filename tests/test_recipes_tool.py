"""The tool that trains recipes: a run that did not reach its target must not pass for one that did."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.recipes import verdict

from rollweave.config.load import load_job

RECIPES = sorted((Path(__file__).resolve().parents[1] / "recipes").glob("*.yaml"))
GOOD = {"exit_reason": "target", "steps": 40, "target_reached": True, "eval_best": 0.9, "target": 0.85}


@pytest.mark.parametrize(
    ("returncode", "change", "steps", "problem"),
    [
        (0, {}, None, ""),
        (0, {"exit_reason": "completed", "target_reached": None}, None, ""),
        (0, {"exit_reason": "completed", "steps": 2, "target_reached": None}, 2, ""),
        (2, {}, None, "ended with code 2"),
        (0, {"exit_reason": "interrupted"}, None, "summary.json says interrupted"),
        (0, {"exit_reason": "completed", "target_reached": False, "eval_best": 0.3}, None, "best held-out reward 0.3"),
        (0, {"exit_reason": "completed", "steps": 1}, 2, "made 1 of 2 steps"),
    ],
)
def test_verdicts(returncode: int, change: dict[str, object], steps: int | None, problem: str) -> None:
    found = verdict(returncode, {**GOOD, **change}, steps)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_a_run_without_a_summary_is_not_good() -> None:
    assert verdict(0, {}, None) == "summary.json says nothing"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_every_recipe_can_be_cut_to_two_steps(recipe: Path) -> None:
    job = load_job(recipe, ["training.steps=2", "evaluation.target=null", "evaluation.tasks=8"])
    assert (job.training.steps, job.evaluation.target) == (2, None)
