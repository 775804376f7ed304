"""The commands from Python: own class, own reward, files and dicts, in a script and inside a running loop."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import rollweave
from rollweave.cli.main import main
from training_data import tiny_policy


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


def test_mistakes_are_named_as_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(rollweave.RollweaveError, match="did you mean"):
        rollweave.train(env="frozen_lake", rollout={"group_sise": 3}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_exported_name_can_be_had() -> None:
    assert all(getattr(rollweave, name) is not None for name in rollweave.__all__)
    assert len(rollweave.__all__) == 15 and not {"Clock", "run_wall", "run_virtual"} & {*rollweave.__all__}


# --------------------------------------------------------------------------------- what the other commands find

WORK: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "workload": {"tasks": [{"preset": "gem-math"}]},
    "rollout": {"groups_per_step": 2, "group_size": 2},
}
POOLS = [
    {"name": "rollout", "device": "H20", "count": 4, "role": "rollout"},
    {"name": "train", "device": "H800", "count": 4, "role": "train"},
]
SIMULATION = {**WORK, "training": {"steps": 2}, "cluster": {"pools": POOLS}}
PLAN = {**WORK, "offers": [{"device": "H800", "count": 4}], "alpha": [1.0], "redundant_groups": [0.0]}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


def file(folder: Path, data: Any) -> Path:
    (folder / "file.yaml").write_text(json.dumps(data))
    return folder / "file.yaml"


def test_simulate_returns_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, SIMULATION)
    found = rollweave.simulate(path, seed=3, pipeline={"alpha": 2})
    assert found == rollweave.simulate(SIMULATION, seed=3, pipeline={"alpha": 2})
    assert capsys.readouterr() == ("", "")
    assert found == printed(capsys, "simulate", str(path), "seed=3", "pipeline.alpha=2")
    assert (found["seed"], found["alpha"], len(found["rows"])) == (3, 2.0, 2)


def test_a_section_in_a_file_of_its_own_may_be_named(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(json.dumps({"pools": POOLS}))
    without = {key: value for key, value in SIMULATION.items() if key != "cluster"}
    assert rollweave.simulate(without, cluster=str(cluster)) == rollweave.simulate(SIMULATION)
    assert rollweave.simulate(without, cluster={"pools": POOLS}) == rollweave.simulate(SIMULATION)


def test_plan_returns_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, PLAN)
    found = rollweave.plan(path, top=2, seed=1)
    assert capsys.readouterr() == ("", "")
    assert found == printed(capsys, "plan", str(path), "seed=1", "--top", "2")
    assert len(found["candidates"]) == 2


def test_evaluate_returns_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_policy(tmp_path / "policy"))
    found = rollweave.evaluate(model, env="frozen_lake", tasks=2, rollout={"max_turns": 2})
    assert capsys.readouterr() == ("", "")
    assert found == printed(capsys, "eval", model, "--env", "frozen_lake", "--tasks", "2", "rollout.max_turns=2")
    assert found["tasks"] == 2


def test_they_run_where_a_loop_is_already_running() -> None:
    async def notebook_cell() -> dict[str, Any]:
        return rollweave.simulate(SIMULATION)

    assert asyncio.run(notebook_cell()) == rollweave.simulate(SIMULATION)


def test_mistakes_in_a_dict_are_named_as_in_a_file() -> None:
    with pytest.raises(rollweave.RollweaveError, match=r"alphas: is called alpha now"):
        rollweave.plan({**PLAN, "alphas": [1.0]})
    with pytest.raises(rollweave.RollweaveError, match=r"redundancies: is called redundant_groups now"):
        rollweave.plan(PLAN, redundancies=[0.5])
    with pytest.raises(rollweave.RollweaveError, match=r"'rollout.group_sise=3'.*did you mean group_size"):
        rollweave.simulate(SIMULATION, rollout={"group_sise": 3})
