"""A co-group: mux jobs that share train nodes and use them alternately.

Every job trains on all train nodes of the group; its rollouts are pinned to some of the group's rollout nodes.
Sums are cached, so that testing a placement takes only a few comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rollweave.mux.model.job import JobProfile

Mode = Literal["rr", "fifo"]
"""`rr`: strict round robin, one period for all jobs. `fifo`: first come, first served, each job at its own rate."""


class Phases(NamedTuple):
    """The phases of one job on the nodes of a group: seconds, GB of host memory, and rollout nodes."""

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
    """A group of mux jobs, with its nodes, its mode and its cached sums."""

    id: int
    train_nodes: tuple[int, ...]
    mode: Mode = "rr"
    pins: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The rollout nodes of each job, in arrival order. Negative numbers are not nodes, but timings of a phantom."""
    phases: dict[str, Phases] = field(default_factory=dict)
    phantoms: tuple[str, ...] = ()
    """Jobs that have left, whose phases stay reserved because the SLOs of the others were computed with them (see
    `decisions/departure.py`)."""
    order: tuple[str, ...] = ()
    """The cyclic order of the jobs: arrival order, unless the order search found a better one."""
    node_load: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds of rollout per lap (the paper's meta-iteration), by node, including switches."""
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
        """The jobs of the group without phantoms, in arrival order."""
        return tuple(job for job in self.pins if job not in self.phantoms)

    @property
    def size(self) -> int:
        return len(self.pins) - len(self.phantoms)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The rollout nodes of the group: those to which a job that is no phantom is pinned."""
        return tuple(sorted({node for job in self.jobs for node in self.pins[job]}))

    @property
    def t_cycle(self) -> float:
        """The iteration of the longest job alone; no lap can be shorter."""
        if len(self.pins) == 1:
            only = next(iter(self.phases.values()))
            return only.roll + only.train
        return self.max_solo

    @property
    def t_load(self) -> float:
        """The work per lap on the busiest node."""
        if len(self.pins) == 1:
            only = next(iter(self.phases.values()))
            return max(only.roll, only.train)
        return max(self.sum_train, self.max_load)

    @property
    def saturated(self) -> bool:
        return self.t_load >= self.t_cycle

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
        """Make the job a phantom: it leaves, its phases stay. Phases on a node that is given back have no node."""
        self.phantoms = (*self.phantoms, job)
        kept = self.nodes
        for phantom in self.phantoms:
            nodes = self.pins[phantom]
            self.pins[phantom] = tuple(node if node in kept or node < 0 else -1 - node for node in nodes)
        self.refresh()

    def _forget_phantoms(self) -> None:
        """End the reservations at the next change of the group's jobs; the plan for it was assessed without them."""
        for phantom in self.phantoms:
            del self.pins[phantom], self.phases[phantom]
        self.order = tuple(job for job in self.order if job not in self.phantoms)
        self.phantoms = ()

    def retime(self, job: str, phases: Phases) -> None:
        self.phases[job] = phases
        self.refresh()

    def refresh(self) -> None:
        """Compute the cached sums again from all jobs: groups are small, and updated sums would collect errors."""
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
        pins, phases = dict(self.pins), dict(self.phases)
        return CoGroup(self.id, self.train_nodes, self.mode, pins, phases, self.phantoms, self.order)
