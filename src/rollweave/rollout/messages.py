"""What the driver and its environment hosts say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from rollweave.engines.protocol import Sampling
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Lease:
    """Permission to play one episode. It can be issued again if its host dies."""

    id: str
    group: int
    member: int
    attempt: int
    task: Task
    seed: int
    """What is sampled in turn t depends on this and t only."""
    sampling: Sampling
    version: int
    """The engine version at admission."""


@dataclass(slots=True)
class Report:
    """How a lease ended. A reward that failed for good leaves the trajectory finished but unscored."""

    lease: str
    trajectory: Trajectory
    reward_failed: bool = False
