"""RunningGroup: a group whose members are being played, and the leases that are out for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollweave.rollout.state import OpenGroup
from rollweave.tasks import Task
from rollweave.trajectory import Group, Trajectory


@dataclass(slots=True)
class RunningGroup:
    id: int
    task: Task
    version: int
    """What its staleness counts from: the engines' version at admission, renewed until the first lease is out."""
    members: int
    """How many are played, the redundant ones among them."""
    requeues: int = 0
    leases: dict[int, str] = field(default_factory=dict)
    """Member -> the lease that is out for it."""
    attempts: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    finished: list[Trajectory] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Members that have ended for good without a trajectory."""

    @property
    def ended(self) -> bool:
        return len(self.finished) + len(self.lost) == self.members

    @property
    def unfinished(self) -> list[int]:
        gone = self.lost.union(trajectory.member for trajectory in self.finished)
        return [member for member in range(self.members) if member not in gone]

    def next_attempt(self, member: int) -> int:
        attempt = self.attempts.get(member, 0)
        self.attempts[member] = attempt + 1
        return attempt

    def begin_again(self, version: int) -> None:
        """From the start, under a newer version; attempts go on counting."""
        self.requeues += 1
        self.version = version
        self.finished = []
        self.lost = set()
        self.leases = {}

    def whole(self) -> Group:
        return Group(self.id, self.task, self.finished)

    def state(self) -> OpenGroup:
        return OpenGroup(
            self.id,
            self.version,
            self.requeues,
            dict(self.attempts),
            dict(self.failures),
            list(self.finished),
            sorted(self.lost),
        )

    @classmethod
    def from_state(cls, state: OpenGroup, task: Task, members: int) -> RunningGroup:
        return cls(
            state.id,
            task,
            state.version,
            members,
            state.requeues,
            attempts=dict(state.attempts),
            failures=dict(state.failures),
            finished=list(state.finished),
            lost=set(state.lost),
        )
