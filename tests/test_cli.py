"""The command line: what it hands on, how it fails, what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollweave.cli.main import main
from rollweave.config.job import Job
from rollweave.config.load import load_job, save_resolved
from rollweave.errors import RollweaveError

JOB = "model: {type: tiny}\nenvironment: {type: frozen_lake}\npipeline: {type: sync+}\n"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for what the commands call, and writes down how it is called."""
    made: list[Any] = []

    def train_job(job: Job, out: Path | None, resume: bool = False, permits: object = None) -> Path:
        made.append((job, out, resume) if resume else (job, out))
        return out or Path("runs/x")

    def evaluate(target: str, overrides: list[str], tasks: int) -> dict[str, Any]:
        made.append((target, overrides, tasks))
        return {"reward": 0.5, "tasks": tasks}

    monkeypatch.setattr("rollweave.runs.train.train_job", train_job)
    monkeypatch.setattr("rollweave.runs.evaluate.evaluate", evaluate)
    return made


def run(*words: object) -> int:
    """Exit code of the program."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def test_train_hands_on_the_checked_job(job_file: Path, calls: list[Any], tmp_path: Path) -> None:
    assert run("train", job_file, "training.steps=3", "--out", tmp_path / "run", "seed=5") == 0
    job = load_job(job_file, ["training.steps=3", "seed=5"])
    assert calls == [(job, tmp_path / "run")]


def test_resume_hands_on_the_folder_and_its_job(
    job_file: Path, calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = load_job(job_file, ["training.steps=7"])
    save_resolved(job, tmp_path / "run")
    assert run("train", "--resume", tmp_path / "run", "training.steps=9") == 0
    assert run("train", job_file, "--out", tmp_path / "run", "--resume") == 0
    assert calls == [
        (load_job(job_file, ["training.steps=9"]), tmp_path / "run", True),
        (load_job(job_file), tmp_path / "run", True),
    ]
    assert run("train", "--resume", tmp_path) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_dry_run_prints_a_loadable_file_and_trains_nothing(
    job_file: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", job_file, "seed=5", "--dry-run") == 0
    printed = capsys.readouterr()
    resolved = job_file.parent / "resolved.yaml"
    resolved.write_text(printed.out)
    assert load_job(resolved) == load_job(job_file, ["seed=5"])
    assert "16 groups x 8 members = 128 episodes" in printed.err
    assert calls == []


def test_a_dry_run_into_a_folder_writes_the_file_once(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "run"
    assert run("train", job_file, "--dry-run", "--out", out) == 0
    assert load_job(out / "config.yaml") == load_job(job_file)
    before = (out / "config.yaml").read_text()
    assert run("train", job_file, "seed=9", "--dry-run", "--out", out) == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err
    assert (out / "config.yaml").read_text() == before


def test_eval_hands_on_target_overrides_and_tasks(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval", "runs/a", "--env", "frozen_lake", "environment.size=8", "--tasks", 7, "--json") == 0
    assert calls == [("runs/a", ["environment.type=frozen_lake", "environment.size=8"], 7)]
    assert json.loads(capsys.readouterr().out) == {"reward": 0.5, "tasks": 7}


def test_eval_prints_for_people_too(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval", "runs/a") == 0
    assert capsys.readouterr().out == "reward  0.5\ntasks   100\n"


def test_an_error_of_the_user_is_one_line_and_code_2(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", job_file, "training.stepz=3") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "error: override 'training.stepz=3': training.stepz: no such key; did you mean steps?\n"


def test_debug_shows_the_traceback(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", str(job_file), "training.stepz=3"]
    with pytest.raises(RollweaveError):
        main([*words, "--debug"])
    monkeypatch.setenv("ROLLWEAVE_DEBUG", "1")
    with pytest.raises(RollweaveError):
        main(words)


def test_a_programming_error_is_never_hidden(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr("rollweave.config.load.load_job", broken)
    with pytest.raises(KeyError):
        main(["train", str(job_file)])


def test_a_wrong_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--nonsense") == 2
    assert "Usage: rollweave train" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("rollweave 0.")
    assert run("--help") == 0
    text = capsys.readouterr().out
    for command in ("train", "eval", "env", "replay", "report", "doctor"):
        assert f"\n  {command} " in text
