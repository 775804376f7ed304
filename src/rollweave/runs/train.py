"""Trains a job, from its file to its end: chooses the folder, finds where to begin, runs a session, leaves a report.

`train_job` is what `rollweave train` and `rollweave.train` call.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

from rollweave.config.environments import PythonEnvironmentConfig
from rollweave.config.job import HubModel, Job, LocalModel, RayRuntime
from rollweave.environments.protocol import MakeEnvironment
from rollweave.environments.registry import EnvironmentFactory, members, source
from rollweave.errors import ConfigError, RunFolderError
from rollweave.observability.jsonl import read_object
from rollweave.pipelines.permits import MakePermits
from rollweave.rewards.scorer import NamedReward, Scorer
from rollweave.runs.folder import RunFolder
from rollweave.runs.resume import Start, check_job, find, rewind
from rollweave.runs.session import Session
from rollweave.runtimes.layout import layout
from rollweave.targets import load_target


def check_before_start(job: Job, environment_given: bool = False) -> None:
    """Raise the error that the run would meet: a file, class, function or model that the job names cannot be used.

    Nothing has been written yet, so the same command works once it is fixed. A given environment is a Python object:
    there is nothing to look up.
    """
    for environment in members(job.environment).values():
        if isinstance(environment, PythonEnvironmentConfig) and not environment_given:
            load_target(environment.target, Path())
    Scorer(job.rewards, Path())
    if isinstance(job.runtime, RayRuntime):
        layout(job, job.runtime)
    if isinstance(job.model, LocalModel | HubModel):
        from rollweave.policies.prepare import find_model

        find_model(job.model)


def train_job(
    job: Job,
    out: Path | None = None,
    resume: bool = False,
    *,
    environments: MakeEnvironment | None = None,
    rewards: tuple[NamedReward, ...] = (),
    permits: MakePermits | None = None,
) -> Path:
    """Train a job to its end; returns the run folder.

    `resume`: go on in `out` where its run stopped, if there is one. `environments`, `rewards`: Python objects, instead
    of or beside those that the job names. `permits`: how the job comes by pools that it shares, if it does.
    """
    if resume and out is None:
        raise ConfigError("--resume needs the folder of the run: rollweave train --resume RUN, or --out RUN")
    continuing = resume and out is not None and RunFolder.holds_run(out)
    folder = RunFolder.open(out) if continuing and out is not None else RunFolder.choose(job, out)
    tasks = source(job.environment, job.seed, Path())
    check_before_start(job, environment_given=environments is not None)
    if not continuing:
        folder.create(job)
    with folder.locked():
        start = _continue(folder, job) if continuing else Start()
        if start is not None:
            environments = environments or EnvironmentFactory.from_config(job.environment, Path())
            _run(Session(job, folder, tasks, start, environments, rewards, permits))
    return folder.path


def _continue(folder: RunFolder, job: Job) -> Start | None:
    """Where the run goes on; None if it is finished."""
    check_job(folder, job)
    if _finished(folder, job):
        print(f"{folder.path} is finished: {find(folder).version} steps are trained. To go on, raise training.steps")
        return None
    folder.replace_job(job)
    return rewind(folder, job)


def _finished(folder: RunFolder, job: Job) -> bool:
    """Whether it ended by itself, and this job wants no more of it."""
    summary = read_object(folder.summary)
    if not summary:
        return False  # it was killed before it could say how it ended
    reached = summary["target_reached"] and summary["target"] == job.evaluation.target
    return summary["exit_reason"] in ("completed", "target") and (
        bool(reached) or find(folder).version >= job.training.steps
    )


def _run(session: Session) -> None:
    reason, failure = session.run()
    with suppress(RunFolderError) if failure else nullcontext():  # a full disk: what it broke first says more
        summary = session.finish(reason, failure)
    if failure is not None:
        raise failure
    session.say_goodbye(summary)
