"""Runs one job in one mode, as a user would, and reads what it says about itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rollweave.config.load import load_job
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.policies.start import start_policy

from .cases import Case, Mode

SKIPPED_STEPS = 3
"""The first steps fill the pipeline and warm the processes up."""


@dataclass(frozen=True, slots=True)
class Result:
    """Means over the steady steps of one run."""

    steps_per_hour: float
    step_seconds: float
    get_batch_seconds: float
    train_seconds: float
    sync_seconds: float
    engine_idle: float
    trainer_idle: float
    staleness: float
    tokens: float
    """Sampled tokens a step trains on: modes that do the same work have about the same."""


def make_policy(case: Case, folder: Path) -> Path:
    """The policy of a case, made once: all modes start from the same."""
    job = load_job(case.file)
    environments = EnvironmentFactory.from_config(job.environment, case.file.parent)
    tasks = source(job.environment, job.seed, case.file.parent)
    return start_policy(job, folder, environments, tasks, lambda what, done, total: None)


def run(case: Case, mode: Mode, policy: Path, folder: Path) -> Result:
    """`rollweave train` in a process of its own."""
    model = ("model.type=local", f"model.path={policy}")
    steps = f"training.steps={SKIPPED_STEPS + case.steps[mode.name]}"
    rollweave("train", str(case.file), *mode.overrides, *model, steps, "--out", str(folder))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return summarise([json.loads(line) for line in lines])


def rollweave(*words: str) -> None:
    """Run a command, without what the caller set for torch: the runtime gives every worker its threads."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "rollweave.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")


def summarise(rows: list[dict[str, Any]]) -> Result:
    steady = [row for row in rows if row["step"] >= SKIPPED_STEPS and "time/step" in row]
    mean = {key: fmean(row[key] for row in steady) for key in KEYS.values()}
    return Result(3600 / mean["time/step"], **{name: mean[key] for name, key in KEYS.items()})


KEYS = {
    "step_seconds": "time/step",
    "get_batch_seconds": "time/get_batch",
    "train_seconds": "time/train",
    "sync_seconds": "time/sync_exposed",
    "engine_idle": "idle/engine",
    "trainer_idle": "idle/trainer",
    "staleness": "staleness/mean",
    "tokens": "tokens/trained",
}
