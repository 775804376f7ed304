"""A plan is what the scheduler wants to happen: an ordered list of steps, each with its reason.

A plan is only a value. `apply` carries it out on a state, and no other code changes groups and pools; `invariants.py`
says what must hold afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rollweave.mux.model.group import CoGroup, Mode, phases_at
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.slo import paces
from rollweave.mux.model.state import ClusterState

StepKind = Literal["open", "place", "move", "leave", "reserve", "arrange", "retime", "resubmit", "wait"]
"""open: new group around a job · place: a job joins a group · move: a running job changes group and pauses for its
`move_s` · leave: a job is gone; nodes and groups without a job are given back · reserve: the same, but its
phases stay reserved (their timing only) until the group changes again · arrange: mode and order of a group · retime:
the planned phase times of a job change · resubmit: the caller stops the job (it has left) and submits it again with the
new profile · wait: no room in the pools, the caller tries again after a departure."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    kind: StepKind
    job: str = ""
    group: int = 0
    why: str = ""
    nodes: tuple[int, ...] = ()
    """Rollout nodes of the job, new ones included."""
    new_nodes: tuple[int, ...] = ()
    """Those of them that are taken from the pool now."""
    train_nodes: tuple[int, ...] = ()
    """For `open`, and a `move` to nodes of its own: the train nodes of the new group."""
    mode: Mode = "rr"
    order: tuple[str, ...] = ()
    t_roll: float = 0.0
    t_train: float = 0.0


class Rejection(NamedTuple):
    """Why a group did not take a job; text only when somebody asks."""

    group: int
    reason: str
    """A format string over `left`, `right`, `job`."""
    left: float = 0.0
    right: float = 0.0
    job: str = ""

    def __str__(self) -> str:
        return f"group {self.group}: " + self.reason.format(left=self.left, right=self.right, job=self.job)


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[PlanStep, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    """Of the placement in it, group by group in the order they were looked at."""

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.steps + other.steps, self.rejections + other.rejections)

    @property
    def moves(self) -> int:
        """Jobs that have to pause for it."""
        return sum(step.kind == "move" for step in self.steps)

    def groups(self) -> set[int]:
        return {step.group for step in self.steps if step.group}

    def jobs(self) -> set[str]:
        return {step.job for step in self.steps if step.job}

    def explain(self) -> str:
        """The plan and what was refused on the way, one line each."""
        lines: Iterable[str] = [f"{step.kind} {step.job or f'group {step.group}'}: {step.why}" for step in self.steps]
        return "\n".join([*lines, *(f"  not {rejection}" for rejection in self.rejections)])


def touched_groups(state: ClusterState, plan: Plan) -> set[int]:
    return plan.groups() | {state.home[job] for job in plan.jobs() if job in state.home}


def tried(state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> ClusterState:
    """The state as it would be after the plan; the state itself does not change."""
    touched = touched_groups(state, plan)
    members = [job for number in touched & state.groups.keys() for job in state.groups[number].jobs]
    sketch = state.sketch(touched, members)
    apply(sketch, plan, now, replace(arriving) if arriving is not None else None)
    return sketch


def apply(state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
    """Do the steps in order, then give the members of every touched group their new pace."""
    touched = touched_groups(state, plan)
    for number in touched & state.groups.keys():
        for name in state.groups[number].jobs:
            state.jobs[name].settle(now)
    for step in plan.steps:
        HANDLERS[step.kind](state, step, now, arriving)
    for number in touched & state.groups.keys():
        _set_paces(state, state.groups[number])


def _set_paces(state: ClusterState, group: CoGroup) -> None:
    for name, pace in paces(group).items():
        if name in state.jobs:
            state.jobs[name].pace = pace


def _place(state: ClusterState, step: PlanStep, now: float, arriving: MuxJob | None) -> None:
    assert arriving is not None and arriving.id == step.job, f"{step.job} is placed but nobody brought it"
    arriving.promise(now)
    state.jobs[step.job] = arriving
    _pin(state, step)


def _move(state: ClusterState, step: PlanStep, now: float, arriving: MuxJob | None) -> None:
    state.jobs[step.job].pause(now)
    _detach(state, step.job)
    _pin(state, step)


def _pin(state: ClusterState, step: PlanStep) -> None:
    """Onto its nodes; `train_nodes` mean that the group is new."""
    if step.train_nodes:
        state.train.take(step.train_nodes)
        state.groups[step.group] = CoGroup(step.group, step.train_nodes)
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


def _release(state: ClusterState, group: CoGroup, before: tuple[int, ...]) -> None:
    state.rollout.give_back(tuple(node for node in before if node not in group.nodes))
    if group.size == 0:
        state.train.give_back(group.train_nodes)
        del state.groups[group.id]


def _leave(state: ClusterState, step: PlanStep, now: float, arriving: MuxJob | None) -> None:
    _detach(state, step.job)
    del state.jobs[step.job]


def _reserve(state: ClusterState, step: PlanStep, now: float, arriving: MuxJob | None) -> None:
    """The job is gone, but its phases stay reserved."""
    group = state.groups[step.group]
    before = group.nodes
    group.reserve(step.job)
    del state.home[step.job], state.jobs[step.job]
    _release(state, group, before)


def _arrange(state: ClusterState, step: PlanStep, now: float, arriving: MuxJob | None) -> None:
    group = state.groups[step.group]
    group.mode, group.order = step.mode, step.order


def _retime(state: ClusterState, step: PlanStep, now: float, arriving: MuxJob | None) -> None:
    job, group = state.jobs[step.job], state.group_of(step.job)
    job.profile = job.profile.with_times(step.t_roll, step.t_train)
    group.retime(step.job, phases_at(job.profile, group.width))


def _nothing(state: ClusterState, step: PlanStep, now: float, arriving: MuxJob | None) -> None:
    """`wait` changes nothing."""


HANDLERS: dict[str, Callable[[ClusterState, PlanStep, float, MuxJob | None], None]] = {
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
