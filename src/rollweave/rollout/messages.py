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


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop playing a lease. It is reported all the same, as `aborted` (or as it ended, if that was sooner)."""

    lease: str


@dataclass(slots=True)
class Report:
    """How a lease ended: every lease is reported once.

    A reward that failed for good leaves the trajectory finished but unscored.
    """

    lease: str
    trajectory: Trajectory
    reward_failed: bool = False
    host_died: bool = False
    """Nobody knows how far it got: said by the dispatcher in the place of a host that is gone."""
