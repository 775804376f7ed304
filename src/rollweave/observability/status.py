"""Finds out the status of a run for `rollweave status`, from the run folder alone.

running   its process exists; `silent` says for how long it has written nothing
ended     it wrote summary.json
dead      it began, its process no longer exists, and there is no summary.json
new       it has not begun to train
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rollweave.observability.jsonl import read_object
from rollweave.observability.report.data import load_run

Liveness = Literal["running", "ended", "dead", "new"]

SILENT_SECONDS = 5.0
"""The driver writes every second. If the file is older than this, something blocks the driver."""

RECENT_STEPS = 10


@dataclass(slots=True)
class Status:
    """Everything that `rollweave status` shows about a run."""

    folder: str
    name: str
    state: Liveness
    pid: int | None = None
    host: str = ""
    reason: str = ""
    """Why the run ended."""
    error: str = ""
    silent: float | None = None
    """Seconds since the driver last wrote status.json, if that is long ago."""
    step: int = 0
    """Number of completed train steps."""
    steps: int | None = None
    seconds_per_step: float | None = None
    """Mean of the last ten steps."""
    seconds_left: float | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    """The newest metrics row."""
    rewards: list[float | None] = field(default_factory=list)
    now: Mapping[str, Any] = field(default_factory=dict)
    """The content of status.json, which the driver writes every second."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status(folder: Path, wall: Callable[[], float] = time.time) -> Status:
    """Read the status of the run in this folder."""
    run = load_run(folder)
    now = read_object(folder / "status.json")
    status = Status(
        folder=str(folder),
        name=run.name,
        state="new",
        steps=now.get("steps") or run.setting("training", "steps"),
        row=run.steps[-1] if run.steps else {},
        step=int(run.steps[-1]["step"]) + 1 if run.steps else 0,
        rewards=[row.get("reward/mean") for row in run.steps],
        now=now,
    )
    _decide_state(status, read_object(folder / "lock"), read_object(folder / "summary.json"), wall())
    _predict(status, [row.get("time/step") for row in run.steps[-RECENT_STEPS:]])
    return status


def _decide_state(status: Status, owner: Mapping[str, Any], summary: Mapping[str, Any], wall: float) -> None:
    written = status.now.get("written")
    if _lives(owner, written, wall):
        status.state, status.pid, status.host = "running", owner["pid"], owner["host"]
        if status.now.get("pid") != status.pid:  # from an earlier process of the run; this one has written none yet
            status.now, written = {}, None
    elif summary:
        status.state, status.reason = "ended", str(summary.get("exit_reason"))
        status.error = str(summary.get("error") or "")
    elif written is not None or status.row:
        status.state, status.pid = "dead", status.now.get("pid")
    if status.state in ("running", "dead") and written is not None and wall - written > SILENT_SECONDS:
        status.silent = wall - written


def _lives(owner: Mapping[str, Any], written: float | None, wall: float) -> bool:
    """Whether the process lives that works in the folder. One that ends normally removes itself from the lock file."""
    if not {"pid", "host"} <= owner.keys():
        return False
    if owner["host"] != socket.gethostname():  # on another machine, only the age of status.json tells
        return written is not None and wall - written < 60 * SILENT_SECONDS
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _predict(status: Status, seconds: list[float | None]) -> None:
    known = [one for one in seconds if one]
    if known:
        status.seconds_per_step = fmean(known)
    if known and status.steps and status.state == "running":
        status.seconds_left = max(0, status.steps - status.step) * fmean(known)
