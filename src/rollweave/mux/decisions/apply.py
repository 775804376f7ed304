"""Carrying a plan out on a state: the only code that changes groups and pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rollweave.mux.decisions.plan import Plan, Step
from rollweave.mux.model.group import Group, phases_at
from rollweave.mux.model.job import Job
from rollweave.mux.model.slo import paces
from rollweave.mux.model.state import ClusterState


def touched_groups(state: ClusterState, plan: Plan) -> set[int]:
    return plan.groups() | {state.home[job] for job in plan.jobs() if job in state.home}


def tried(state: ClusterState, plan: Plan, now: float, arriving: Job | None = None) -> ClusterState:
    """The state as it would be after the plan; the state itself does not change."""
    touched = touched_groups(state, plan)
    members = [job for number in touched & state.groups.keys() for job in state.groups[number].jobs]
    sketch = state.sketch(touched, members)
    apply(sketch, plan, now, replace(arriving) if arriving is not None else None)
    return sketch


def apply(state: ClusterState, plan: Plan, now: float, arriving: Job | None = None) -> None:
    """Do the steps in order, then give the members of every touched group their new pace."""
    touched = touched_groups(state, plan)
    for number in touched & state.groups.keys():
        for name in state.groups[number].jobs:
            state.jobs[name].settle(now)
    for step in plan.steps:
        HANDLERS[step.kind](state, step, now, arriving)
    for number in touched & state.groups.keys():
        _set_paces(state, state.groups[number])


def _set_paces(state: ClusterState, group: Group) -> None:
    for name, pace in paces(group).items():
        if name in state.jobs:
            state.jobs[name].pace = pace


def _place(state: ClusterState, step: Step, now: float, arriving: Job | None) -> None:
    assert arriving is not None and arriving.id == step.job, f"{step.job} is placed but nobody brought it"
    arriving.promise(now)
    state.jobs[step.job] = arriving
    _pin(state, step)


def _move(state: ClusterState, step: Step, now: float, arriving: Job | None) -> None:
    state.jobs[step.job].pause(now)
    _detach(state, step.job)
    _pin(state, step)


def _pin(state: ClusterState, step: Step) -> None:
    """Onto its nodes; `train_nodes` mean that the group is new."""
    if step.train_nodes:
        state.train.take(step.train_nodes)
        state.groups[step.group] = Group(step.group, step.train_nodes)
        state.next_group = max(state.next_group, step.group + 1)
    group = state.groups[step.group]
    state.rollout.take(step.new_nodes)
    group.add(step.job, phases_at(state.jobs[step.job].profile, group.width), step.nodes)
    state.home[step.job] = step.group


def _detach(state: ClusterState, job: str) -> None:
    """Out of its group; nodes and groups that nobody needs any more go back to their pools."""
    group = state.groups[state.home.pop(job)]
    before = group.nodes
    group.remove(job)
    _release(state, group, before)


def _release(state: ClusterState, group: Group, before: tuple[int, ...]) -> None:
    state.rollout.give_back(tuple(node for node in before if node not in group.nodes))
    if group.size == 0:
        state.train.give_back(group.train_nodes)
        del state.groups[group.id]


def _leave(state: ClusterState, step: Step, now: float, arriving: Job | None) -> None:
    _detach(state, step.job)
    del state.jobs[step.job]


def _reserve(state: ClusterState, step: Step, now: float, arriving: Job | None) -> None:
    """The job is gone, its turns are not."""
    group = state.groups[step.group]
    before = group.nodes
    group.reserve(step.job)
    del state.home[step.job], state.jobs[step.job]
    _release(state, group, before)


def _arrange(state: ClusterState, step: Step, now: float, arriving: Job | None) -> None:
    group = state.groups[step.group]
    group.mode, group.order = step.mode, step.order


def _retime(state: ClusterState, step: Step, now: float, arriving: Job | None) -> None:
    job, group = state.jobs[step.job], state.group_of(step.job)
    job.profile = job.profile.with_times(step.t_roll, step.t_train)
    group.retime(step.job, phases_at(job.profile, group.width))


def _nothing(state: ClusterState, step: Step, now: float, arriving: Job | None) -> None:
    """`wait` changes nothing."""


HANDLERS: dict[str, Callable[[ClusterState, Step, float, Job | None], None]] = {
    "open": _place,
    "place": _place,
    "move": _move,
    "leave": _leave,
    "resubmit": _leave,
    "reserve": _reserve,
    "arrange": _arrange,
    "retime": _retime,
    "wait": _nothing,
}
