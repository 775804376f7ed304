"""What a checkpoint remembers of the control plane: enough to lose no task and train none twice.

Everything here is plain data: numbers, names, and the trajectories of finished members, with every token's version
and log-prob. Tasks of open groups are not kept: a group's number is its position in the task source.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollweave.trajectory import Group, Trajectory


@dataclass(slots=True)
class LedgerState:
    admitted: int = 0
    issued: int = 0
    tasks: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    open_tasks: list[int] = field(default_factory=list)
    open_attempts: list[str] = field(default_factory=list)
    scoring: list[str] = field(default_factory=list)
    """Those of them whose reward is being computed."""


@dataclass(slots=True)
class OpenGroup:
    """A group that was being played: members that are finished or being scored are kept, the others leased again."""

    id: int
    version: int
    requeues: int
    attempts: dict[int, int]
    """Leases issued so far, by member."""
    failures: dict[int, int]
    """Infrastructure failures so far, by member."""
    finished: list[Trajectory]
    lost: list[int]
    """Members that have ended for good without a trajectory."""
    scoring: list[Trajectory] = field(default_factory=list)
    """Members whose reward was being computed: it is computed again."""


@dataclass(slots=True)
class SchedulerState:
    """Taken between two steps."""

    version: int = 0
    """Train steps completed; the next batch is that of this step."""
    cursor: int = 0
    ledger: LedgerState = field(default_factory=LedgerState)
    buffered: list[Group] = field(default_factory=list)
    open: list[OpenGroup] = field(default_factory=list)
    kept_lately: list[bool] = field(default_factory=list)
    """What the filter made of the last groups."""
