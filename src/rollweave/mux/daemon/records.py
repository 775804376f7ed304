"""What the daemon remembers of a job, from submission to its end. Plain data, stored as JSON.

profiling ──▶ waiting ──▶ running ──▶ finished
    │            ▲           │  └───▶ failed      its own error, or killed too often without getting anywhere
    │            └───────────┘                    its process was killed: it arrives again
    └──▶ failed        any of them ──▶ cancelled

How a job's process ended is read from the files that it left: a daemon that was started later is not its parent and
gets no exit code. A run that ended in order says so in its `summary.json`, its own errors included; without that file
it was killed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rollweave.errors import ConfigError
from rollweave.runtimes.machine import Process

JobState = Literal["profiling", "waiting", "running", "finished", "failed", "cancelled"]
ENDED: tuple[JobState, ...] = ("finished", "failed", "cancelled")


def check_slo(slo: float) -> None:
    """Refuse an SLO below 1, and what is not a finite number."""
    if not 1 <= slo < math.inf:
        raise ConfigError(
            f"--slo {slo:g}: an SLO is the slow-down that you tolerate, a number of at least 1 (1: as fast as alone; "
            "1.5: an iteration may take half as long again as it would alone)"
        )


@dataclass(slots=True)
class PhaseTimes:
    """Seconds of the two phases: the worst case by the profiler, or what iterations really took."""

    t_roll: float = 0.0
    t_train: float = 0.0


@dataclass(slots=True)
class JobProgress:
    """Iterations of a job, counted between two of its requests for a rollout permit."""

    step: int = 0
    """Train steps completed, those of earlier processes included."""
    iterations: int = 0
    seconds: float = 0.0
    """What those iterations took, waiting for permits included."""
    slowest: float = 0.0
    asked_at: float | None = None
    """When this process last asked for a rollout permit."""
    tokens: int = 0
    worked: PhaseTimes = field(default_factory=PhaseTimes)
    """Seconds under permits, summed."""
    took: PhaseTimes = field(default_factory=PhaseTimes)
    """Seconds under permits in the present iteration; 0 where they are not known."""
    first_ready: float | None = None
    """When its first iteration could start: the clock of its SLO."""


@dataclass(slots=True)
class JobRecord:
    id: str
    name: str
    source: str
    """The job file as it was named."""
    slo: float
    submitted: float
    n_roll: int = 1
    n_train: int = 1
    steps: int = 1
    state: JobState = "profiling"
    life: int = 0
    """The number of its newest process; an older process is told to end."""
    process: Process | None = None
    launched: float = 0.0
    """When its newest process was started."""
    profile: PhaseTimes | None = None
    memory_gb: float = 0.0
    cold_seconds: float = 0.0
    """How long its newest process took to load everything."""
    warm_seconds: float = 0.0
    """The longest time between the grant of a permit and the start of its phase."""
    progress: JobProgress = field(default_factory=JobProgress)
    handed_back: int | None = None
    """The epoch of the last permit that it gave back: a message that comes twice gives back nothing more."""
    kills: int = 0
    """How often it was killed since it last completed an iteration."""
    error: str = ""
    ended: float | None = None
    why: list[str] = field(default_factory=list)
    """What the scheduler said of its last placement, a line each."""

    @property
    def over(self) -> bool:
        return self.state in ENDED


Ending = Literal["finished", "failed", "killed"]


def how_it_ended(run: Path, log: Path) -> tuple[Ending, str, int]:
    """How a process ended, why (its own message), and after how many steps (0: it does not say)."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "killed", last_words(log), 0
    steps = int(summary["steps"])
    if summary["exit_reason"] in ("completed", "target"):
        return "finished", "", steps
    if summary["exit_reason"] == "interrupted":
        words = "its process was interrupted (SIGINT); `rollweave submit --resume ID` goes on with it"
        return "failed", words, steps
    return "failed", str(summary.get("error") or last_words(log)), steps


def say_failed(run: Path, error: str) -> None:
    """Leave a summary for a process that ends with an error of its own before there is a run."""
    run.mkdir(parents=True, exist_ok=True)
    summary = {"exit_reason": "failed", "error": error, "steps": 0}
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def forget_ending(run: Path) -> None:
    """Remove the summary of an earlier process, so that it is not taken for that of the next one."""
    (run / "summary.json").unlink(missing_ok=True)


def last_words(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(it has none)"
    return next((line.strip() for line in reversed(lines) if line.strip()), "(it is empty)")
