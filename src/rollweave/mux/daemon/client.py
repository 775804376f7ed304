"""The commands' side of the daemon: `Client` asks it, and says what to do when it does not answer.

`submission` makes of a job file what the daemon takes: checked before it is sent, and complete, defaults included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from rollweave.config.control import SyncPipeline, SyncPlusPipeline
from rollweave.config.job import InlineRuntime, Job
from rollweave.config.load import dump_job, load_job
from rollweave.errors import ConfigError, RollweaveError
from rollweave.mux.daemon.records import check_slo
from rollweave.mux.daemon.store import NoDaemon, StateFolder
from rollweave.runs.train import check_before_start

TIMEOUT = 10.0


class DaemonError(RollweaveError):
    """The daemon refused a request, or did not start; the message says why."""


class Client:
    def __init__(self, folder: StateFolder) -> None:
        self.folder = folder

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", path, body or {})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = self.folder.connection(TIMEOUT)
        try:
            with httpx2.Client(**connection) as client:
                answer = client.request(method, path, json=body)
        except httpx2.TransportError as error:
            raise NoDaemon(
                f"the daemon of {self.folder.path} does not answer at {connection['base_url']} "
                f"({type(error).__name__}): start it again with `rollweave daemon start --state {self.folder.path}` "
                f"(its jobs are not lost); what it said last is in {self.folder.log}"
            ) from None
        if answer.status_code >= 400:
            raise DaemonError(_words(answer))
        return answer.json()


def _words(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError):
        return f"the daemon failed with code {answer.status_code}; see its log"


def submission(path: Path, overrides: Sequence[str], slo: float, n_roll: int | None, n_train: int) -> dict[str, Any]:
    """The body of `POST /jobs`. Without `n_roll` the job gets a rollout node for each engine."""
    check_slo(slo)
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
    """Refuse a job that never leaves a pool idle for others. Returns the number of its engines."""
    if not isinstance(job.pipeline, SyncPipeline | SyncPlusPipeline):
        raise ConfigError(
            f"{path}: pipeline.type is {job.pipeline.type}, which uses both pools at once and leaves nothing to share: "
            "submit it with pipeline.type=sync+ (or run it alone with `rollweave train`)"
        )
    if job.training.stream:
        raise ConfigError(
            f"{path}: training.stream trains while episodes are played, and so uses both pools at once: submit it with "
            "training.stream=false (or run it alone with `rollweave train`)"
        )
    if not isinstance(job.runtime, InlineRuntime):
        raise ConfigError(
            f"{path}: runtime.type is {job.runtime.type}; a submitted job is one process that moves between pools: "
            "submit it with runtime.type=inline"
        )
    return job.runtime.engines
