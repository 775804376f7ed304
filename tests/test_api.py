"""`rollweave.train` from Python: own class, own reward, in a script and inside a running loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rollweave
from rollweave.api import DEFAULTS, _merged


class Echo:
    """Say the letter you are shown."""

    def reset(self, seed: int) -> str:
        self.letter = "ab"[seed % 2]
        return f"say {self.letter}"

    def step(self, action: str) -> tuple[str, float, bool]:
        return "", float(action.strip() == self.letter), True

    def scripted_action(self, rng: Any) -> str:
        return str(rng.choice("ab"))


def brevity(trajectory: rollweave.Trajectory) -> float:
    return -0.01 * trajectory.sampled_tokens


def small(folder: Path) -> rollweave.Run:
    return rollweave.train(
        env=Echo,
        reward=brevity,
        model={"type": "tiny", "hidden": 32, "layers": 1, "head_dim": 8, "warm_start": {"steps": 3, "episodes": 20}},
        out=folder,
        rollout={"groups_per_step": 2, "group_size": 2, "max_context": 64, "sampling": {"max_tokens": 3}},
        training={"steps": 2},
        runtime={"type": "inline", "threads": 1},
        evaluation={"every": 1, "tasks": 4},
    )


def test_a_class_and_a_function_are_enough(tmp_path: Path) -> None:
    run = small(tmp_path / "run")
    assert run.summary["steps"] == 2
    assert {"reward/environment", "reward/brevity"} <= run.metrics[0].keys()
    assert run.metrics[0]["reward/brevity"] < 0
    assert run.checkpoint is not None and (run.checkpoint / "model.safetensors").is_file()
    assert (run.folder / "report.html").is_file()


def test_it_runs_where_a_loop_is_already_running(tmp_path: Path) -> None:
    async def notebook_cell() -> rollweave.Run:
        return small(tmp_path / "run")

    assert asyncio.run(notebook_cell()).summary["exit_reason"] == "completed"


def test_sections_that_have_an_argument_of_their_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(rollweave.RollweaveError, match="arguments env, model and reward"):
        rollweave.train(env="frozen_lake", rewards=[], out=tmp_path / "run")


def test_naming_the_default_loss_keeps_its_denominator() -> None:
    assert _merged(DEFAULTS, {"training": {"loss": {"type": "ppo"}}})["training"]["loss"]["denominator"] == "behaviour"
    # Another loss has other keys: what it divides by is for its user to say.
    assert _merged(DEFAULTS, {"training": {"loss": {"type": "gspo"}}})["training"]["loss"] == {"type": "gspo"}


def test_mistakes_are_named_as_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(rollweave.RollweaveError, match="did you mean"):
        rollweave.train(env="frozen_lake", rollout={"group_sise": 3}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_exported_name_can_be_had() -> None:
    assert all(getattr(rollweave, name) is not None for name in rollweave.__all__)
