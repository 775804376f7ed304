"""The state of the multiplexer: two pools of nodes, co-groups and mux jobs. It is plain data; time is an argument.

A plan is checked on a `sketch` of the state (only the groups it touches are copied) before the state itself changes.

Each pool has a price, host memory per node and perhaps a limit. A node is a number in its pool. The lowest free number
is always used next, so that the same arrivals give the same nodes in every run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.job import MuxJob

GPUS_PER_NODE = 8


@dataclass(slots=True)
class NodePool:
    """A pool of nodes, and which of them are in use."""

    price: float
    """Dollars per node and hour."""
    host_gb: float = 2048.0
    limit: float = math.inf
    used: float = 0
    """The number of nodes in use; a whole number, except for Gavel+, which pays for fractions."""
    next: int = 0
    freed: list[int] = field(default_factory=list)

    def has(self, count: int) -> bool:
        return self.used + count <= self.limit

    def peek(self, count: int) -> tuple[int, ...]:
        """The numbers of the next free nodes."""
        free = heapq.nsmallest(count, self.freed)
        return (*free, *range(self.next, self.next + count - len(free)))

    def take(self, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            if node >= self.next:
                self.freed.extend(range(self.next, node))
                self.next = node + 1
            else:
                self.freed.remove(node)
        heapq.heapify(self.freed)
        self.used += len(nodes)

    def give_back(self, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            heapq.heappush(self.freed, node)
        self.used -= len(nodes)

    def copy(self) -> NodePool:
        return NodePool(self.price, self.host_gb, self.limit, self.used, self.next, list(self.freed))


def rollout_pool(host_gb: float = 2048.0, limit: float = math.inf) -> NodePool:
    """A pool of nodes with 8 x H20 at $1.85 per GPU and hour (RollMux section 6)."""
    return NodePool(GPUS_PER_NODE * 1.85, host_gb, limit)


def train_pool(host_gb: float = 2048.0, limit: float = math.inf) -> NodePool:
    """A pool of nodes with 8 x H800 at $5.28 per GPU and hour (RollMux section 6)."""
    return NodePool(GPUS_PER_NODE * 5.28, host_gb, limit)


@dataclass(slots=True)
class ClusterState:
    """Everything that the scheduler knows."""

    rollout: NodePool = field(default_factory=rollout_pool)
    train: NodePool = field(default_factory=train_pool)
    groups: dict[int, CoGroup] = field(default_factory=dict)
    """The co-groups in creation order."""
    jobs: dict[str, MuxJob] = field(default_factory=dict)
    """The jobs that are placed."""
    home: dict[str, int] = field(default_factory=dict)
    """The group of each job."""
    next_group: int = 1

    def cost(self) -> float:
        """Dollars per hour of all nodes in use."""
        return self.rollout.price * self.rollout.used + self.train.price * self.train.used

    def group_of(self, job: str) -> CoGroup:
        return self.groups[self.home[job]]

    def group_cost(self, group: CoGroup) -> float:
        """Dollars per hour of all nodes of the group, whether they are used or idle."""
        return self.rollout.price * len(group.nodes) + self.train.price * group.width

    def sketch(self, groups: Iterable[int], jobs: Iterable[str]) -> ClusterState:
        """Make a copy in which the named groups and jobs may be changed. The rest is shared and may only be read."""
        pools = self.rollout.copy(), self.train.copy()
        state = ClusterState(*pools, dict(self.groups), dict(self.jobs), dict(self.home), self.next_group)
        for number in groups:
            if number in self.groups:
                state.groups[number] = self.groups[number].copy()
        for name in jobs:
            if name in self.jobs:
                state.jobs[name] = replace(self.jobs[name])
        return state
