"""From a job file to what the daemon takes: checked here, before anybody waits, and complete, defaults included."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollweave.config.job import InlineRuntime, Job, SyncPipeline, SyncPlusPipeline
from rollweave.config.load import dump_job, load_job
from rollweave.errors import ConfigError
from rollweave.runs.preflight import check_before_start


def submission(path: Path, overrides: Sequence[str], slo: float, n_roll: int, n_train: int) -> dict[str, Any]:
    job = load_job(path, overrides)
    check_shareable(job, path)
    check_before_start(job)
    return {
        "name": re.sub(r"[^A-Za-z0-9_.]+", "-", job.name).strip("-.") or "job",
        "source": str(path),
        "job_yaml": dump_job(job),
        "slo": slo,
        "steps": job.training.steps,
        "n_roll": n_roll,
        "n_train": n_train,
    }


def check_shareable(job: Job, path: Path) -> None:
    """Only a job whose phases take turns leaves pools idle that others could use."""
    if not isinstance(job.pipeline, SyncPipeline | SyncPlusPipeline):
        raise ConfigError(
            f"{path}: pipeline.type is {job.pipeline.type}, which uses both pools at once and leaves nothing to share: "
            "submit it with pipeline.type=sync+ (or run it alone with `rollweave train`)"
        )
    if not isinstance(job.runtime, InlineRuntime):
        raise ConfigError(
            f"{path}: runtime.type is {job.runtime.type}; a job of a cluster is one process that moves between pools: "
            "submit it with runtime.type=inline"
        )
