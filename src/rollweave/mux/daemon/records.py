"""What the daemon remembers of a job, from submission to its end. Plain data, stored as JSON.

profiling ──▶ waiting ──▶ running ──▶ finished
    │            ▲           │  └───▶ failed      its own error, or killed too often without getting anywhere
    │            └───────────┘                    its process was killed: it arrives again
    └──▶ failed        any of them ──▶ cancelled
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rollweave.cluster.machine import Process

State = Literal["profiling", "waiting", "running", "finished", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")


@dataclass(slots=True)
class Measured:
    """Phase times: worst case by the profiler, or what iterations really took."""

    t_roll: float = 0.0
    t_train: float = 0.0


@dataclass(slots=True)
class Progress:
    """Iterations of a job, counted between two of its requests for a rollout turn."""

    step: int = 0
    """Train steps completed, those of earlier processes included."""
    iterations: int = 0
    seconds: float = 0.0
    """What those iterations took, waiting for turns included."""
    slowest: float = 0.0
    asked_at: float | None = None
    """When this process last asked for a rollout turn."""
    tokens: int = 0
    worked: Measured = field(default_factory=Measured)
    """Seconds under permits, summed."""
    took: Measured = field(default_factory=Measured)
    """The same of the present iteration."""
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
    state: State = "profiling"
    attempt: int = 0
    """Processes started for it so far; a process that is not the newest is told to end."""
    process: Process | None = None
    launched: float = 0.0
    """When its newest process was started."""
    profile: Measured | None = None
    memory_gb: float = 0.0
    cold_seconds: float = 0.0
    """How long its newest process took to load everything."""
    warm_seconds: float = 0.0
    """The longest time between the grant of a turn and the start of its phase."""
    progress: Progress = field(default_factory=Progress)
    handed_back: int | None = None
    """The last permit that it gave back: told so twice, nobody is wrong."""
    kills: int = 0
    """Violent deaths since it last completed an iteration."""
    error: str = ""
    ended: float | None = None
    why: list[str] = field(default_factory=list)
    """What the scheduler said of its last placement, a line each."""

    @property
    def over(self) -> bool:
        return self.state in ENDED
