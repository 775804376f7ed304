"""Everything the scheduler knows: pools, groups, jobs. Plain data; time is always an argument.

A plan is checked on a `sketch` of the state (only the groups it touches are copied) before the state itself changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rollweave.mux.model.group import Group, Phases
from rollweave.mux.model.job import Job
from rollweave.mux.model.node import Pool, rollout_pool, train_pool
from rollweave.mux.model.profile import JobProfile


@dataclass(slots=True)
class ClusterState:
    rollout: Pool = field(default_factory=rollout_pool)
    train: Pool = field(default_factory=train_pool)
    groups: dict[int, Group] = field(default_factory=dict)
    """In creation order."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """Placed jobs only."""
    home: dict[str, int] = field(default_factory=dict)
    """Job -> its group."""
    next_group: int = 1

    def cost(self) -> float:
        """Dollars per hour of all provisioned nodes."""
        return self.rollout.price * self.rollout.used + self.train.price * self.train.used

    def group_of(self, job: str) -> Group:
        return self.groups[self.home[job]]

    def group_cost(self, group: Group) -> float:
        return group.cost(self.rollout.price, self.train.price)

    def report(self, job: str, done: float, now: float) -> None:
        """Iterations really finished (the daemon says so after every iteration)."""
        self.jobs[job].report(done, now)

    def sketch(self, groups: Iterable[int], jobs: Iterable[str]) -> ClusterState:
        """A copy that may be changed in the named groups and jobs; the rest is shared and must only be read."""
        state = ClusterState(
            self.rollout.copy(),
            self.train.copy(),
            dict(self.groups),
            dict(self.jobs),
            dict(self.home),
            self.next_group,
        )
        for number in groups:
            if number in self.groups:
                state.groups[number] = self.groups[number].copy()
        for name in jobs:
            if name in self.jobs:
                state.jobs[name] = replace(self.jobs[name])
        return state

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ClusterState:
        groups = [_group(item) for item in data["groups"].values()]
        jobs = [_job(item) for item in data["jobs"].values()]
        return cls(
            Pool(**data["rollout"]),
            Pool(**data["train"]),
            {group.id: group for group in groups},
            {job.id: job for job in jobs},
            dict(data["home"]),
            data["next_group"],
        )


def _job(item: dict[str, Any]) -> Job:
    return Job(**{**item, "profile": JobProfile(**item["profile"]), "seen": tuple(item["seen"])})


def _group(item: dict[str, Any]) -> Group:
    return Group(
        item["id"],
        tuple(item["train_nodes"]),
        item["mode"],
        {job: tuple(nodes) for job, nodes in item["pins"].items()},
        {job: Phases(*phases) for job, phases in item["phases"].items()},
        tuple(item["phantoms"]),
        tuple(item["order"]),
    )
