"""A co-execution group: jobs that share train nodes and use them one after the other.

Every member trains on all train nodes of the group; its rollouts are pinned to some of the group's rollout nodes.
Sums are cached, so that a placement test is a handful of comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rollweave.mux.model.job import JobProfile

Mode = Literal["rr", "fifo"]
"""Strict round robin (one period for all) or first come, first served (each job at its own rate)."""


class Phases(NamedTuple):
    """One job's phases on a group's nodes."""

    roll: float
    train: float
    switch_roll: float
    switch_train: float
    mem_roll: float
    mem_train: float
    n_roll: int

    @property
    def shared_roll(self) -> float:
        return self.roll + self.switch_roll

    @property
    def shared_train(self) -> float:
        return self.train + self.switch_train

    @property
    def shared_solo(self) -> float:
        return self.roll + self.train + self.switch_roll + self.switch_train


def phases_at(profile: JobProfile, width: int) -> Phases:
    """The job's phases in a group of `width` train nodes."""
    return Phases(
        profile.t_roll,
        profile.train_at(width),
        profile.switch_roll,
        profile.switch_train,
        profile.mem_roll,
        profile.mem_train,
        profile.n_roll,
    )


@dataclass(slots=True)
class CoGroup:
    id: int
    train_nodes: tuple[int, ...]
    mode: Mode = "rr"
    pins: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Member -> its rollout nodes, in arrival order. Negative numbers are no nodes: the timing of a phantom only."""
    phases: dict[str, Phases] = field(default_factory=dict)
    phantoms: tuple[str, ...] = ()
    """Members that left, whose phases stay reserved because the others' promise was computed with them."""
    order: tuple[str, ...] = ()
    """Cyclic order of the members; arrival order unless the order search found a better one."""
    node_load: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds of rollout per meta-iteration, by node, switches included."""
    node_mem: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    sum_train: float = field(default=0.0, compare=False, repr=False)
    max_load: float = field(default=0.0, compare=False, repr=False)
    max_solo: float = field(default=0.0, compare=False, repr=False)
    train_mem: float = field(default=0.0, compare=False, repr=False)
    gang: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.refresh()

    @property
    def width(self) -> int:
        return len(self.train_nodes)

    @property
    def jobs(self) -> tuple[str, ...]:
        """Real members in arrival order."""
        return tuple(job for job in self.pins if job not in self.phantoms)

    @property
    def size(self) -> int:
        return len(self.pins) - len(self.phantoms)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Rollout nodes, provisioned as long as a real member is pinned to them."""
        return tuple(sorted({node for job in self.jobs for node in self.pins[job]}))

    @property
    def t_cycle(self) -> float:
        """The longest member alone: a lap cannot be shorter."""
        if len(self.pins) == 1:
            only = next(iter(self.phases.values()))
            return only.roll + only.train
        return self.max_solo

    @property
    def t_load(self) -> float:
        """Work per meta-iteration on the busiest node."""
        if len(self.pins) == 1:
            only = next(iter(self.phases.values()))
            return max(only.roll, only.train)
        return max(self.sum_train, self.max_load)

    @property
    def saturated(self) -> bool:
        return self.t_load >= self.t_cycle

    def cost(self, roll_price: float, train_price: float) -> float:
        """Dollars per hour of everything provisioned, used or not."""
        return roll_price * len(self.nodes) + train_price * self.width

    def add(self, job: str, phases: Phases, nodes: tuple[int, ...]) -> None:
        self._forget_phantoms()
        self.pins[job], self.phases[job] = nodes, phases
        self.order = (*self.order, job) if self.order else ()
        self.refresh()

    def remove(self, job: str) -> None:
        self._forget_phantoms()
        del self.pins[job], self.phases[job]
        self.order = tuple(other for other in self.order if other != job)
        self.refresh()

    def reserve(self, job: str) -> None:
        """The member leaves, its phases stay reserved; on a node that is given back they count for no node."""
        self.phantoms = (*self.phantoms, job)
        kept = self.nodes
        for phantom in self.phantoms:
            nodes = self.pins[phantom]
            self.pins[phantom] = tuple(node if node in kept or node < 0 else -1 - node for node in nodes)
        self.refresh()

    def _forget_phantoms(self) -> None:
        """Reservations end with the next change of the membership: whoever makes it judges the group without them."""
        for phantom in self.phantoms:
            del self.pins[phantom], self.phases[phantom]
        self.order = tuple(job for job in self.order if job not in self.phantoms)
        self.phantoms = ()

    def retime(self, job: str, phases: Phases) -> None:
        self.phases[job] = phases
        self.refresh()

    def refresh(self) -> None:
        """Recompute the cached sums (from scratch: groups are small and sums must not drift)."""
        load: dict[int, float] = {}
        memory: dict[int, float] = {}
        for job, nodes in self.pins.items():
            own = self.phases[job]
            real = job not in self.phantoms
            for node in nodes:
                load[node] = load.get(node, 0.0) + own.shared_roll
                memory[node] = memory.get(node, 0.0) + (own.mem_roll if real else 0.0)
        members = self.phases.values()
        self.node_load, self.node_mem = load, memory
        self.max_load = max(load.values(), default=0.0)
        self.sum_train = sum(member.shared_train for member in members)
        self.max_solo = max((member.shared_solo for member in members), default=0.0)
        self.train_mem = sum(self.phases[job].mem_train for job in self.jobs)
        self.gang = any(len(nodes) > 1 for nodes in self.pins.values())

    def copy(self) -> CoGroup:
        return CoGroup(
            self.id,
            self.train_nodes,
            self.mode,
            dict(self.pins),
            dict(self.phases),
            self.phantoms,
            self.order,
        )
