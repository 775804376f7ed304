"""The first look at a group: what can be said about a newcomer from cached sums alone.

For every possible set of rollout nodes: enough memory? Could round robin keep every promise (exact without gangs)?
Could FIFO at all (every machine must have room for all members at the slowest pace they tolerate)? And what will it
cost at least?
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rollweave.mux.group import Group, Phases, phases_at
from rollweave.mux.horizon import HOUR
from rollweave.mux.job import Job
from rollweave.mux.plan import Rejection
from rollweave.mux.policy import Policy
from rollweave.mux.slo import SLACK, limit
from rollweave.mux.state import ClusterState


class Candidate(NamedTuple):
    group: Group
    nodes: tuple[int, ...]
    new: tuple[int, ...]
    floor: float
    """It costs at least this much (dollars per hour, or dollars with `integrated_cost`)."""
    round_robin: bool
    """Could round robin work?"""


@dataclass(slots=True)
class Newcomer:
    """The job to be placed, with what is asked of it again and again."""

    job: Job
    now: float
    policy: Policy
    limit: float = field(init=False)
    left: float = field(init=False)
    integrated: bool = field(init=False)
    _phases: dict[int, Phases] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.limit = limit(self.job, self.now, self.policy) * SLACK
        self.left = self.job.remaining(self.now)
        self.integrated = self.policy.integrated_cost and not math.isinf(self.left)

    def phases(self, width: int) -> Phases:
        if width not in self._phases:
            self._phases[width] = phases_at(self.job.profile, width)
        return self._phases[width]


@dataclass(slots=True)
class Outlook:
    """A group's members at the slowest pace each of them tolerates."""

    tightest: float
    """The smallest tolerated iteration; whose it is."""
    whose: str
    train_share: float
    """Share of the train nodes they need at that pace."""
    node_share: dict[int, float]
    last_end: float
    node_end: dict[int, float]
    fifo: bool

    @classmethod
    def of(cls, state: ClusterState, group: Group, now: float, policy: Policy) -> Outlook:
        view = cls(math.inf, "", 0.0, {}, now, {}, policy.fifo != "off" and not group.gang)
        for name, nodes in group.pins.items():
            if name in group.phantoms:
                continue
            job, own = state.jobs[name], group.phases[name]
            tolerated = limit(job, now, policy) * SLACK
            if tolerated < view.tightest:
                view.tightest, view.whose = tolerated, name
            view._add(own, nodes, tolerated)
            if policy.integrated_cost:
                view._ends(job.finish_at(), nodes)
        return view

    def _add(self, own: Phases, nodes: tuple[int, ...], tolerated: float) -> None:
        if own.shared_solo > tolerated:
            self.fifo = False
        if self.fifo:
            self.train_share += own.shared_train / tolerated
            for node in nodes:
                self.node_share[node] = self.node_share.get(node, 0.0) + own.shared_roll / tolerated

    def _ends(self, end: float, nodes: tuple[int, ...]) -> None:
        self.last_end = max(self.last_end, end)
        for node in nodes:
            self.node_end[node] = max(self.node_end.get(node, 0.0), end)


def survey(state: ClusterState, group: Group, newcomer: Newcomer, candidates: list[Candidate]) -> Rejection | None:
    """Append what may work in this group; the reason if nothing can."""
    refused = _closed(state, group, newcomer)
    if refused is not None:
        return refused
    view = Outlook.of(state, group, newcomer.now, newcomer.policy)
    phases = newcomer.phases(group.width)
    before = len(candidates)
    for nodes, new in placements(group, phases.n_roll, state):
        answer = _glance(state, group, view, phases, nodes, new, newcomer)
        if isinstance(answer, Candidate):
            candidates.append(answer)
        else:
            refused = answer
    return refused if len(candidates) == before else None


def _closed(state: ClusterState, group: Group, newcomer: Newcomer) -> Rejection | None:
    policy = newcomer.policy
    if policy.prune_saturated and group.saturated:
        return Rejection(
            group.id, "saturated: T_load {left:.0f} s >= T_cycle {right:.0f} s", group.t_load, group.t_cycle
        )
    if group.size >= policy.max_group:
        return Rejection(group.id, "full: {left:.0f} jobs of at most {right:.0f}", group.size, policy.max_group)
    needed, free = newcomer.job.profile.mem_train, state.train.host_gb - group.train_mem
    if needed >= free:
        return Rejection(group.id, "train memory: {left:.0f} GB >= {right:.0f} GB free", needed, free)
    return None


def placements(group: Group, n_roll: int, state: ClusterState) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(all nodes, new ones among them): windows of the existing nodes by load, then 1, 2 ... new nodes."""
    if n_roll == 1:
        existing = [node for node in group.node_load if node >= 0]
    else:
        existing = sorted(group.nodes, key=lambda node: (group.node_load[node], node))
    for first in range(len(existing) - n_roll + 1):
        yield tuple(existing[first : first + n_roll]), ()
    for count in range(1, n_roll + 1):
        if n_roll - count <= len(existing) and state.rollout.has(count):
            new = state.rollout.peek(count)
            yield (*existing[: n_roll - count], *new), new


def _glance(
    state: ClusterState,
    group: Group,
    view: Outlook,
    phases: Phases,
    nodes: tuple[int, ...],
    new: tuple[int, ...],
    newcomer: Newcomer,
) -> Candidate | Rejection:
    free = state.rollout.host_gb - max(group.node_mem.get(node, 0.0) for node in nodes)
    if phases.mem_roll >= free:
        return Rejection(group.id, "rollout memory: {left:.0f} GB >= {right:.0f} GB free", phases.mem_roll, free)
    load = max(group.max_load, *(group.node_load.get(node, 0.0) + phases.shared_roll for node in nodes))
    load = max(load, group.sum_train + phases.shared_train)
    cycle = max(group.max_solo, phases.shared_solo)
    if newcomer.policy.forbid_oversaturated and load > cycle:
        return Rejection(group.id, "over-saturated: {left:.0f} s > {right:.0f} s", load, cycle)
    tightest = min(view.tightest, newcomer.limit)
    round_robin = max(load, cycle) <= tightest
    if not (round_robin or _fifo_possible(view, phases, nodes, newcomer.limit)):
        whose = newcomer.job.id if newcomer.limit <= view.tightest else view.whose
        return Rejection(group.id, "SLO of job {job}: {left:.0f} s > {right:.0f} s", max(load, cycle), tightest, whose)
    return Candidate(group, nodes, new, _floor(state, view, phases, nodes, new, newcomer), round_robin)


def _fifo_possible(view: Outlook, phases: Phases, nodes: tuple[int, ...], tolerated: float) -> bool:
    if not view.fifo or len(nodes) > 1 or phases.shared_solo > tolerated:
        return False
    if view.train_share + phases.shared_train / tolerated > 1:
        return False
    return view.node_share.get(nodes[0], 0.0) + phases.shared_roll / tolerated <= 1


def _floor(
    state: ClusterState,
    view: Outlook,
    phases: Phases,
    nodes: tuple[int, ...],
    new: tuple[int, ...],
    newcomer: Newcomer,
) -> float:
    """What the newcomer adds at its fastest, if it slowed nobody down."""
    if not newcomer.integrated:
        return state.rollout.price * len(new)
    now = newcomer.now
    end = max(now, newcomer.job.resumes_at) + newcomer.left * phases.shared_solo
    longer = state.train.price * max(0.0, end - view.last_end)
    for node in nodes:
        longer += state.rollout.price * max(0.0, end - view.node_end.get(node, now))
    return longer / HOUR
