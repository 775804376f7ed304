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


def submission(path: Path, overrides: Sequence[str], slo: float, n_roll: int | None, n_train: int) -> dict[str, Any]:
    """`n_roll`: default: a rollout node for each engine."""
    job = load_job(path, overrides)
    engines = check_shareable(job, path)
    n_roll = n_roll or engines
    if engines not in (1, n_roll):
        raise ConfigError(
            f"{path}: runtime.engines is {engines} and --rollout-nodes {n_roll}, but several engines have a node each: "
            f"leave --rollout-nodes away, or set runtime.engines={n_roll}"
        )
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


def check_shareable(job: Job, path: Path) -> int:
    """Only a job whose phases take turns leaves pools idle that others could use. Returns the number of its engines."""
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
    return job.runtime.engines
