"""The invariants that hold after every plan. They are numbered, so that a refused plan names the one it would break.

    1  every job is in exactly one group, and that group lists it
    2  a job is pinned to as many distinct rollout nodes as it asked for
    3  no node belongs to two groups
    4  no node's host memory is over-committed, in either pool
    5  no group has more jobs than the policy allows
    6  the plan breaks no SLO (a job that is late already must not become later)
    7  the nodes in use of a pool are exactly the nodes of the groups, and not more than the pool has
    8  no empty group and no rollout node without a job is paid for
    9  a group's train nodes never change
    10 a job that the plan does not name stays on its nodes

`check_plan` checks the groups that a plan touches: if all invariants held before, they hold after. `check_state` checks
the whole state, except for 6, 9 and 10, which compare two states. The second half of 8 follows from 7: a group has the
nodes to which its jobs are pinned, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from rollweave.errors import RollweaveError
from rollweave.mux.decisions.plan import Plan, touched_groups, try_plan
from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.model.slo import assess
from rollweave.mux.model.state import ClusterState

LATER_S = 1e-6
"""Tolerance in seconds for rounding, before a job counts as later than before."""


class PlanError(RollweaveError):
    """The plan would break an invariant, and was refused; the state was not changed."""


def check_plan(state: ClusterState, plan: Plan, now: float, policy: MuxPolicy, arriving: MuxJob | None = None) -> None:
    """Try the plan on a copy, and raise `PlanError` with the invariant that it would break."""
    touched = touched_groups(state, plan)
    after = try_plan(state, plan, now, arriving)
    groups = [after.groups[number] for number in touched if number in after.groups]
    for problem in chain(
        _structure(after, groups, policy),
        _unchanged(state, groups, plan),
        _counts(state, after, touched),
        _promises(state, after, groups, now, policy),
    ):
        steps = "; ".join(f"{step.kind} {step.job or step.group}" for step in plan.steps)
        raise PlanError(f"plan refused ({steps}): invariant {problem}")


def check_state(state: ClusterState, policy: MuxPolicy) -> None:
    """Check the whole state (1-5, 7, 8). It is slow: for tests, and for the daemon when it reads a state from disk."""
    for problem in chain(_structure(state, state.groups.values(), policy), _disjoint(state)):
        raise PlanError(f"state is inconsistent: invariant {problem}")


def _structure(state: ClusterState, groups: Iterable[CoGroup], policy: MuxPolicy) -> Iterator[str]:
    for group in groups:
        for job in group.jobs:
            if state.home.get(job) != group.id or job not in state.jobs:
                yield f"1: job {job} is in group {group.id}, but the state does not know it there"
            wanted = state.jobs[job].profile.n_roll
            if len(set(group.pins[job])) != wanted or len(group.pins[job]) != wanted:
                yield f"2: job {job} asked for {wanted} rollout nodes and is pinned to {group.pins[job]}"
        yield from _memory(state, group)
        if group.size > policy.max_group:
            yield f"5: group {group.id} has {group.size} members, at most {policy.max_group} are allowed"
        if group.size == 0:
            yield f"8: group {group.id} is empty"


def _memory(state: ClusterState, group: CoGroup) -> Iterator[str]:
    for node, used in group.node_mem.items():
        if used > state.rollout.host_gb:
            yield f"4: rollout node {node} holds {used:.0f} GB of {state.rollout.host_gb:.0f} GB"
    if group.train_mem > state.train.host_gb:
        yield f"4: train nodes of group {group.id} hold {group.train_mem:.0f} GB of {state.train.host_gb:.0f} GB"


def _promises(
    before: ClusterState, after: ClusterState, groups: Iterable[CoGroup], now: float, policy: MuxPolicy
) -> Iterator[str]:
    for group in groups:
        verdict = assess(group, after.jobs, now, policy, group.mode)
        if verdict.late is None:
            continue
        for name in group.jobs:
            was = before.jobs[name].finish_at() if name in before.jobs else 0.0
            if after.jobs[name].finish_at() > max(was + LATER_S, after.jobs[name].deadline):
                late = verdict.late
                yield f"6: job {late.job} of group {group.id} needs {late.seconds:.0f} s, has {late.limit:.0f} s"


def _unchanged(before: ClusterState, groups: Iterable[CoGroup], plan: Plan) -> Iterator[str]:
    named = plan.jobs()
    for group in groups:
        old = before.groups.get(group.id)
        if old is None:
            continue
        if old.train_nodes != group.train_nodes:
            yield f"9: train nodes of group {group.id} changed from {old.train_nodes} to {group.train_nodes}"
        for job in old.jobs:
            if job not in named and group.pins.get(job) != old.pins[job]:
                yield f"10: job {job} was moved from nodes {old.pins[job]} without being named"


def _counts(before: ClusterState, after: ClusterState, touched: set[int]) -> Iterator[str]:
    """The change of the pools equals the change of the touched groups, so a consistent state stays consistent."""
    for pool, old_pool, held in (
        (after.rollout, before.rollout, lambda group: len(group.nodes)),
        (after.train, before.train, lambda group: group.width),
    ):
        change = sum(held(after.groups[number]) for number in touched if number in after.groups)
        change -= sum(held(before.groups[number]) for number in touched if number in before.groups)
        if pool.used - old_pool.used != change:
            yield f"7: groups hold {change} more nodes, the pool gave out {pool.used - old_pool.used}"
        if pool.used > pool.limit:
            yield f"7: {pool.used} nodes are in use, the pool has {pool.limit:.0f}"
    seen: set[int] = set()
    for number in touched & after.groups.keys():
        nodes = set(after.groups[number].nodes)
        if nodes & seen:
            yield f"3: nodes {sorted(nodes & seen)} belong to two groups"
        seen |= nodes


def _disjoint(state: ClusterState) -> Iterator[str]:
    for pool, lists in (
        (state.rollout, [group.nodes for group in state.groups.values()]),
        (state.train, [group.train_nodes for group in state.groups.values()]),
    ):
        nodes = [node for held in lists for node in held]
        if len(set(nodes)) != len(nodes):
            yield "3: a node belongs to two groups"
        if pool.used != len(nodes) or set(nodes) & set(pool.freed):
            yield f"7: groups hold {len(nodes)} nodes, the pool counts {pool.used}"
        if pool.used > pool.limit:
            yield f"7: {pool.used} nodes are in use, the pool has {pool.limit:.0f}"
    members = [job for group in state.groups.values() for job in group.jobs]
    if sorted(members) != sorted(state.jobs) or sorted(members) != sorted(state.home):
        yield "1: the jobs of the groups are not the jobs of the state"
