"""The first pass of a placement: finds the options for a new job, from the cached sums of the groups alone.

For every possible set of rollout nodes it asks: Is there enough memory? Could round robin keep every SLO (exact without
gangs)? Could FIFO keep them at all (every node must have room for all jobs at the slowest pace they tolerate)? And what
will the option cost at least?

`bill` is the cost of a group until its last job has finished, if nothing else happens: train nodes are paid until the
last job of the group ends, every rollout node until the last job pinned to it ends. The change of this bill shows what
dollars per hour cannot show: a two-hour job that keeps two nodes in use for itself alone, or a job that slows its group
down, so that the group pays its nodes longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rollweave.mux.decisions.plan import Rejection
from rollweave.mux.model.group import CoGroup, Phases, phases_at
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.model.slo import SLACK, limit
from rollweave.mux.model.state import ClusterState


class GroupOption(NamedTuple):
    """A possible place for the new job: a group and rollout nodes."""

    group: CoGroup
    nodes: tuple[int, ...]
    new: tuple[int, ...]
    floor: float
    """The least that it costs (dollars per hour, or dollars with `integrated_cost`)."""
    round_robin: bool
    """Whether round robin may be possible."""


class Fit(NamedTuple):
    """The new job in a group with a certain number of train nodes."""

    phases: Phases
    roll: float
    train: float
    solo: float
    end: float
    """The time at which it would end at its fastest."""


@dataclass(slots=True)
class Newcomer:
    """The job to be placed, with values that are needed for every group."""

    job: MuxJob
    now: float
    policy: MuxPolicy
    limit: float = field(init=False)
    left: float = field(init=False)
    integrated: bool = field(init=False)
    _fits: dict[int, Fit] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.limit = limit(self.job, self.now, self.policy) * SLACK
        self.left = self.job.remaining(self.now)
        self.integrated = self.policy.integrated_cost and not math.isinf(self.left)

    def at(self, width: int) -> Fit:
        if width not in self._fits:
            own = phases_at(self.job.profile, width)
            end = self.job.ends_at(self.now, own.shared_solo)
            self._fits[width] = Fit(own, own.shared_roll, own.shared_train, own.shared_solo, end)
        return self._fits[width]


@dataclass(slots=True)
class Outlook:
    """The jobs of a group at the slowest pace that each of them tolerates."""

    fifo: bool
    """Whether FIFO may be possible: every job alone is as fast as it must be."""
    tightest: float = math.inf
    """The smallest tolerated iteration; `whose` is its job."""
    whose: str = ""
    train_share: float = 0.0
    """The share of the train nodes' time that the jobs need at that pace."""
    node_share: dict[int, float] = field(default_factory=dict)
    last_end: float = 0.0
    node_end: dict[int, float] = field(default_factory=dict)

    def add(self, job: MuxJob, own: Phases, nodes: tuple[int, ...], tolerated: float) -> None:
        if tolerated < self.tightest:
            self.tightest, self.whose = tolerated, job.id
        end = job.finish_at()
        self.last_end = max(self.last_end, end)
        if own.shared_solo > tolerated:
            self.fifo = False
            tolerated = math.inf
        self.train_share += own.shared_train / tolerated
        for node in nodes:
            self.node_share[node] = self.node_share.get(node, 0.0) + own.shared_roll / tolerated
            self.node_end[node] = max(self.node_end.get(node, 0.0), end)


@dataclass(slots=True)
class Views:
    """The outlooks used in one decision; each is computed once, unless its group changes."""

    now: float
    policy: MuxPolicy
    known: dict[int, tuple[CoGroup, Outlook]] = field(default_factory=dict)

    def of(self, state: ClusterState, group: CoGroup) -> Outlook:
        entry = self.known.get(group.id)
        if entry is not None and entry[0] is group:
            return entry[1]
        view = Outlook(fifo=self.policy.fifo != "off" and not group.gang)
        for name in group.jobs:
            job = state.jobs[name]
            view.add(job, group.phases[name], group.pins[name], limit(job, self.now, self.policy) * SLACK)
        self.known[group.id] = (group, view)
        return view


@dataclass(slots=True)
class Survey:
    """Collects all options for the new job, and the reasons why the other groups offer none."""

    state: ClusterState
    newcomer: Newcomer
    views: Views
    candidates: list[GroupOption] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    new: tuple[tuple[int, ...], ...] = ()
    """The next 0, 1, 2 ... free rollout nodes, up to the number that the new job needs."""

    def __post_init__(self) -> None:
        counts = range(self.newcomer.job.profile.n_roll + 1)
        self.new = tuple(self.state.rollout.peek(count) for count in counts if self.state.rollout.has(count))

    def visit(self, group: CoGroup) -> None:
        """Add the options in this group, or the reason if there are none."""
        before = len(self.candidates)
        refused = self._closed(group) or self._look(group)
        if len(self.candidates) == before and refused is not None:
            self.rejections.append(refused)

    def _closed(self, group: CoGroup) -> Rejection | None:
        policy = self.newcomer.policy
        if group.size >= policy.max_group:
            return Rejection(group.id, "full: {left:.0f} jobs of at most {right:.0f}", group.size, policy.max_group)
        if policy.prune_saturated and group.saturated:
            text = "saturated: T_load {left:.0f} s >= T_cycle {right:.0f} s"
            return Rejection(group.id, text, group.t_load, group.t_cycle)
        needed, free = self.newcomer.job.profile.mem_train, self.state.train.host_gb - group.train_mem
        if needed >= free:
            return Rejection(group.id, "train memory: {left:.0f} GB >= {right:.0f} GB free", needed, free)
        return None

    def _look(self, group: CoGroup) -> Rejection | None:
        """Check what holds for all nodes of the group first, then each set of nodes."""
        view, fit, tolerated = self.views.of(self.state, group), self.newcomer.at(group.width), self.newcomer.limit
        tightest = min(view.tightest, tolerated)
        period = max(group.max_solo, fit.solo, group.sum_train + fit.train, group.max_load)
        fifo = view.fifo and fit.solo <= tolerated and view.train_share + fit.train / tolerated <= 1
        if period > tightest and not (fifo and fit.phases.n_roll == 1):
            return self._late(group, view, period)
        refused = None
        for nodes, new in self.placements(group):
            busiest = max([group.node_load.get(node, 0.0) for node in nodes]) + fit.roll
            round_robin = max(period, busiest) <= tightest
            if not round_robin and not (fifo and self._room(view, nodes, fit)):
                refused = self._late(group, view, max(period, busiest))
                continue
            refused = self._refused(group, nodes, fit, max(busiest, group.max_load))
            if refused is None:
                floor = self._floor(view, nodes, new, fit, group.width)
                self.candidates.append(GroupOption(group, nodes, new, floor, round_robin))
        return refused

    def _room(self, view: Outlook, nodes: tuple[int, ...], fit: Fit) -> bool:
        return len(nodes) == 1 and view.node_share.get(nodes[0], 0.0) + fit.roll / self.newcomer.limit <= 1

    def _late(self, group: CoGroup, view: Outlook, period: float) -> Rejection:
        own = self.newcomer.limit <= view.tightest
        whose, tightest = (self.newcomer.job.id, self.newcomer.limit) if own else (view.whose, view.tightest)
        return Rejection(group.id, "SLO of job {job}: {left:.0f} s > {right:.0f} s", period, tightest, whose)

    def _refused(self, group: CoGroup, nodes: tuple[int, ...], fit: Fit, busiest: float) -> Rejection | None:
        free = self.state.rollout.host_gb - max([group.node_mem.get(node, 0.0) for node in nodes])
        if fit.phases.mem_roll >= free:
            text = "rollout memory: {left:.0f} GB >= {right:.0f} GB free"
            return Rejection(group.id, text, fit.phases.mem_roll, free)
        load, cycle = max(busiest, group.sum_train + fit.train), max(group.max_solo, fit.solo)
        if self.newcomer.policy.forbid_oversaturated and load > cycle:
            return Rejection(group.id, "over-saturated: T_load {left:.0f} s > T_cycle {right:.0f} s", load, cycle)
        return None

    def placements(self, group: CoGroup) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Pairs of (all nodes, new nodes among them): first windows of the group's nodes by load, then new nodes."""
        wanted = self.newcomer.job.profile.n_roll
        if wanted == 1:
            found: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((node,), ()) for node in group.nodes]
            return [*found, (self.new[1], self.new[1])] if len(self.new) > 1 else found
        existing = sorted(group.nodes, key=lambda node: (group.node_load[node], node))
        found = [(tuple(existing[first : first + wanted]), ()) for first in range(len(existing) - wanted + 1)]
        for count in range(1, len(self.new)):
            if wanted - count <= len(existing):
                found.append(((*existing[: wanted - count], *self.new[count]), self.new[count]))
        return found

    def _floor(self, view: Outlook, nodes: tuple[int, ...], new: tuple[int, ...], fit: Fit, width: int) -> float:
        """What the new job adds to the cost at its fastest, if it delays no other job."""
        state, now = self.state, self.newcomer.now
        if not self.newcomer.integrated:
            return state.rollout.price * len(new)
        longer = state.train.price * width * max(0.0, fit.end - view.last_end)
        for node in nodes:
            longer += state.rollout.price * max(0.0, fit.end - view.node_end.get(node, now))
        return longer / HOUR


HOUR = 3600.0


def finishes(state: ClusterState, group: CoGroup) -> dict[str, float]:
    """The times at which the jobs of the group end at their present pace."""
    return {name: state.jobs[name].finish_at() for name in group.jobs}


def bill(state: ClusterState, group: CoGroup, ends: Mapping[str, float], now: float) -> float:
    """The dollars that the group costs from now on, given the time at which each job ends."""
    if not ends:
        return 0.0
    node_until: dict[int, float] = {}
    for name, end in ends.items():
        for node in group.pins[name]:
            node_until[node] = max(node_until.get(node, now), end)
    train = state.train.price * group.width * (max(ends.values()) - now)
    rollout = state.rollout.price * sum(until - now for until in node_until.values())
    return (train + rollout) / HOUR
