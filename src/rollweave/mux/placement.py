"""Where an arriving (or moving) job goes: RollMux's Algorithm 1, with the reason for every refusal.

Groups are looked at in creation order. Inside a group, direct packing on existing rollout nodes comes first, then
scaling by just enough new rollout nodes; train nodes are never added. The cheapest place that keeps every promise
wins, the first found on a tie; a new group of its own always works if the pools have room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rollweave.mux.group import Group, Mode, Phases, phases_at
from rollweave.mux.job import Job
from rollweave.mux.plan import Rejection
from rollweave.mux.policy import Policy
from rollweave.mux.slo import best_mode, first_late
from rollweave.mux.state import ClusterState


@dataclass(frozen=True, slots=True)
class Place:
    """A feasible place: `nodes` of `group` (0: a new group), of which `new` come from the pool."""

    group: int
    nodes: tuple[int, ...]
    new: tuple[int, ...]
    cost: float
    """Dollars per hour it adds."""
    score: float
    """What is minimised: `cost`, or with `integrated_cost` dollars until everybody is done."""
    mode: Mode = "rr"
    order: tuple[str, ...] = ()


@dataclass(slots=True)
class Search:
    best: Place | None = None
    rejections: list[Rejection] = field(default_factory=list)

    def offer(self, place: Place) -> None:
        if self.best is None or place.score < self.best.score:
            self.best = place


def find_place(state: ClusterState, job: Job, now: float, policy: Policy, skip: int = 0) -> Search:
    """The best place for `job` among all groups but `skip`, or a new group."""
    search = Search()
    for group in state.groups.values():
        if group.id != skip:
            _look_at(group, state, job, now, policy, search)
    own_nodes, own_train = job.profile.n_roll, job.profile.n_train
    if state.rollout.has(own_nodes) and state.train.has(own_train):
        nodes = state.rollout.peek(own_nodes)
        cost = state.rollout.price * own_nodes + state.train.price * own_train
        search.offer(Place(0, nodes, nodes, cost, cost))
    return search


def _look_at(group: Group, state: ClusterState, job: Job, now: float, policy: Policy, search: Search) -> None:
    refused = _closed(group, policy)
    if refused is None:
        phases = phases_at(job.profile, group.width)
        if phases.mem_train >= state.train.host_gb - group.train_mem:
            free = state.train.host_gb - group.train_mem
            refused = Rejection(group.id, "train memory: {left:.0f} GB >= {right:.0f} GB free", phases.mem_train, free)
        else:
            refused = _try_nodes(group, phases, state, job, now, policy, search)
    if refused is not None:
        search.rejections.append(refused)


def _closed(group: Group, policy: Policy) -> Rejection | None:
    if policy.prune_saturated and group.saturated:
        return Rejection(
            group.id, "saturated: T_load {left:.0f} s >= T_cycle {right:.0f} s", group.t_load, group.t_cycle
        )
    if group.size >= policy.max_group:
        return Rejection(group.id, "full: {left:.0f} jobs of at most {right:.0f}", group.size, policy.max_group)
    return None


def _try_nodes(
    group: Group, phases: Phases, state: ClusterState, job: Job, now: float, policy: Policy, search: Search
) -> Rejection | None:
    """Offer every placement that fits; None if one did, else the reason of the last that did not."""
    refused: Rejection | None = None
    found = False
    for nodes, new in placements(group, phases.n_roll, state):
        if new and found and not nodes:
            break
        answer = _fits(group, phases, nodes, new, state, job, now, policy)
        if isinstance(answer, Rejection):
            refused = answer
            continue
        search.offer(answer)
        found = True
        if new:
            break  # just enough new nodes
    return None if found else refused


def placements(group: Group, n_roll: int, state: ClusterState) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(all nodes, new ones among them): windows of the existing nodes by load, then 1, 2 ... new nodes."""
    by_load = sorted(group.nodes, key=lambda node: (group.node_load[node], node)) if n_roll > 1 else list(group.nodes)
    for first in range(len(by_load) - n_roll + 1):
        yield tuple(by_load[first : first + n_roll]), ()
    for count in range(1, n_roll + 1):
        if n_roll - count <= len(by_load) and state.rollout.has(count):
            new = state.rollout.peek(count)
            yield (*by_load[: n_roll - count], *new), new


def _fits(
    group: Group,
    phases: Phases,
    nodes: tuple[int, ...],
    new: tuple[int, ...],
    state: ClusterState,
    job: Job,
    now: float,
    policy: Policy,
) -> Place | Rejection:
    free = min(state.rollout.host_gb - group.node_mem.get(node, 0.0) for node in nodes)
    if phases.mem_roll >= free:
        return Rejection(group.id, "rollout memory: {left:.0f} GB >= {right:.0f} GB free", phases.mem_roll, free)
    trial = group.copy()
    trial.add(job.id, phases, nodes)
    if policy.forbid_oversaturated and trial.t_load > trial.t_cycle:
        return Rejection(group.id, "over-saturated: {left:.0f} s > {right:.0f} s", trial.t_load, trial.t_cycle)
    jobs = {**state.jobs, job.id: job}
    mode, late = best_mode(trial, jobs, now, policy)
    if late is not None:
        text = f"SLO of job {{job}}: {{left:.0f}} s > {{right:.0f}} s ({late.slo:.2f} x {late.solo_s:.0f} s)"
        return Rejection(group.id, text, late.seconds, late.limit, late.job)
    cost = state.rollout.price * len(new)
    return Place(group.id, nodes, new, cost, cost, mode or "rr")
