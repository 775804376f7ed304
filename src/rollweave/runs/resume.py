"""Finds where a run continues: the newest whole checkpoint of its history, and the logs as they were when it was made.

A checkpoint remembers, with the scheduler's books, how long each log file of the run was. Continuing cuts the logs
back to there, so that a step that is done again is written down once. A checkpoint whose files are damaged, or that
belongs to a stretch of the run that was cut away since (a trainer that outlived its driver may still finish saving
one), is set aside, and the one before it is used. Without any, the run starts again from the policy it started from.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollweave.config.job import Job
from rollweave.errors import ConfigError, RunFolderError
from rollweave.observability import jsonl
from rollweave.pipelines.checkpoints import DriverState, LogMark
from rollweave.runs.folder import RunFolder
from rollweave.training import checkpoint

STEP_LOGS = ("metrics.jsonl", "trajectories.jsonl")
"""What they hold of a step that is done again would be there twice."""
LOGS = (*STEP_LOGS, "events.jsonl")
UNDONE = "events.undone.jsonl"

MAY_CHANGE = (
    *("name", "runtime", "evaluation", "checkpoint", "logging", "weights", "engine"),
    *("training.steps", "training.microbatch_tokens", "training.packing", "training.activation_checkpointing"),
    *("training.ranks", "training.rank_timeout", "training.lora.sync"),
    *("rollout.environments", "rollout.isolation", "rollout.environments_per_process", "rollout.deadlines"),
    *("rollout.max_retries", "rollout.retry_backoff", "rollout.scheduling", "rollout.concurrency"),
)
"""What may differ between a run and its continuation: how long, where and how fast, not what is learnt from what."""


@dataclass(slots=True)
class Start:
    """What a run begins with: nothing, or a checkpoint."""

    checkpoint: Path | None = None
    driver: DriverState = field(default_factory=DriverState)
    notes: list[str] = field(default_factory=list)
    changed: dict[str, list[Any]] = field(default_factory=dict)
    """Keys of the job that differ from the checkpoint's: old value, new value."""
    resumed: bool = False

    @property
    def version(self) -> int:
        return self.driver.scheduler.version

    def __str__(self) -> str:
        return "its start" if self.checkpoint is None else f"checkpoint {self.checkpoint.name}"


# ------------------------------------------------------------------------------------------------- the place


def rewind(folder: RunFolder, job: Job, cut: Sequence[str] = LOGS) -> Start:
    """Find where the run continues and bring its folder back to that moment; `cut`: these of its logs."""
    start = find(folder)
    if start.checkpoint is not None:
        start.changed = _changes(start.driver.job, job.model_dump(mode="json"))
    for path in checkpoint.newest_first(folder.checkpoints):
        if start.checkpoint is None or checkpoint.step_of(path) > start.version:
            checkpoint.set_aside(path)
    for name in cut:
        _cut(folder.path / name, start.driver.logs.get(name, LogMark()).size)
    _drop_last_evaluation(folder.path / "metrics.jsonl", start.version)
    folder.summary.unlink(missing_ok=True)
    return start


def find(folder: RunFolder) -> Start:
    """The newest checkpoint that is whole and of this history. Changes nothing."""
    notes: list[str] = []
    for path in checkpoint.newest_first(folder.checkpoints):
        problem = checkpoint.damage(path)
        if problem is None:
            driver, problem = _read(path, folder)
            if driver is not None:
                return Start(path, driver, notes, resumed=True)
        notes.append(f"checkpoint {path.name} cannot be used: {problem}; it is set aside for the one before it")
    return Start(notes=notes, resumed=True)


def _read(path: Path, folder: RunFolder) -> tuple[DriverState | None, str | None]:
    try:
        driver = DriverState.load(checkpoint.read_driver(path))
    except RunFolderError as error:
        raise RunFolderError(f"{folder.path}: {error}") from None
    except (ValidationError, ValueError):
        return None, f"{checkpoint.DRIVER} cannot be read"
    if driver.scheduler.version != checkpoint.step_of(path):
        return None, f"{checkpoint.DRIVER} is of version {driver.scheduler.version}"
    for name, mark in driver.logs.items():
        if _last_line(folder.path / name, mark.size) != mark.last:
            return None, f"{name} has another history"
    return driver, None


def mark(path: Path) -> LogMark:
    """Where a log ends now. It must have been flushed; this also brings it to the disk."""
    if not path.exists():
        return LogMark()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    size = path.stat().st_size
    return LogMark(size, _last_line(path, size) or "")


def _last_line(path: Path, size: int) -> str | None:
    """The line that ends at byte `size`; None if the file is shorter than that."""
    if size == 0:
        return ""
    if not path.exists() or path.stat().st_size < size:
        return None
    with path.open("rb") as file:
        window = min(size, 4096)
        while True:
            file.seek(size - window)
            _, newline, last = file.read(window).rstrip(b"\n").rpartition(b"\n")
            if newline or window == size:
                return last.decode(errors="replace")
            window = min(size, window * 2)


def _cut(path: Path, size: int) -> None:
    if not path.exists() or path.stat().st_size <= size:
        return
    if path.name == "events.jsonl":  # what led to a crash is worth keeping
        with path.open("rb") as file, path.with_name(UNDONE).open("ab") as undone:
            file.seek(size)
            undone.write(file.read())
    os.truncate(path, size)


def _drop_last_evaluation(path: Path, version: int) -> None:
    """A run that ended evaluated its last version in a row of its own, which the next step writes if it is due."""
    rows = jsonl.read(path).rows
    if rows and rows[-1]["step"] >= version:
        last = _last_line(path, path.stat().st_size) or ""
        os.truncate(path, path.stat().st_size - len(last.encode()) - 1)


# --------------------------------------------------------------------------------------------------- the job


def check_job(folder: RunFolder, job: Job) -> None:
    """Refuse a job that would learn something else than the run does."""
    changed = _changes(folder.job().model_dump(mode="json"), job.model_dump(mode="json"))
    if refused := [key for key in changed if not _may_change(key)]:
        lines = "\n".join(f"  {key}: {changed[key][0]!r} in the run, {changed[key][1]!r} now" for key in refused)
        raise ConfigError(
            f"{folder.path} was started with another job, and what it has learnt so far would not fit:\n{lines}\n"
            f"give these keys their old values (all of them are in {folder.config}), or start a new run with --out"
        )


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Any]]:
    """Key -> old and new value, for those that differ."""
    old, new = _flat(before), _flat(after)
    keys = sorted(old.keys() | new.keys())
    return {key: [old.get(key), new.get(key)] for key in keys if old.get(key) != new.get(key)}


def _may_change(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {name: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{name}.{key}" if name else key)
    return found
