"""A plan: an ordered list of changes, each with its reason; and `apply`, which carries a plan out on a state.

A plan is only a value. `apply` is the only code that changes groups and pools; `invariants.py` lists what must hold
after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rollweave.mux.model.group import CoGroup, Mode, phases_at
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.slo import paces
from rollweave.mux.model.state import ClusterState

StepKind = Literal["open", "place", "move", "leave", "reserve", "arrange", "retime", "resubmit", "wait"]
"""open: a new group is made for a job · place: a job joins a group · move: a running job changes group and pauses for
its `move_s` · leave: a job leaves; nodes and groups without jobs go back to the pools · reserve: a job leaves, but its
phases stay reserved (only their timing) until the group changes again · arrange: mode and order of a group change ·
retime: the planned phase times of a job change · resubmit: the job leaves; the caller stops it and submits it again
with the new profile · wait: the pools have too few free nodes; the caller tries again after a departure."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One change."""

    kind: StepKind
    job: str = ""
    group: int = 0
    why: str = ""
    nodes: tuple[int, ...] = ()
    """The rollout nodes of the job, including new ones."""
    new_nodes: tuple[int, ...] = ()
    """The nodes among them that are taken from the pool now."""
    train_nodes: tuple[int, ...] = ()
    """For `open`, and a `move` to nodes of its own: the train nodes of the new group."""
    mode: Mode = "rr"
    order: tuple[str, ...] = ()
    t_roll: float = 0.0
    t_train: float = 0.0


class Rejection(NamedTuple):
    """The reason why a group did not take a job. The text is made only when it is needed."""

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
    """An ordered list of changes."""

    steps: tuple[PlanStep, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    """The groups that did not take the placed job, in the order in which they were visited."""

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.steps + other.steps, self.rejections + other.rejections)

    def groups(self) -> set[int]:
        return {step.group for step in self.steps if step.group}

    def jobs(self) -> set[str]:
        return {step.job for step in self.steps if step.job}

    def explain(self) -> str:
        """The steps of the plan and the refusals, one line each."""
        lines = [f"{step.kind} {step.job or f'group {step.group}'}: {step.why}" for step in self.steps]
        return "\n".join(lines + [f"  not {rejection}" for rejection in self.rejections])


def touched_groups(state: ClusterState, plan: Plan) -> set[int]:
    return plan.groups() | {state.home[job] for job in plan.jobs() if job in state.home}


def try_plan(state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> ClusterState:
    """Return the state as it would be after the plan. The given state does not change."""
    touched = touched_groups(state, plan)
    members = [job for number in touched & state.groups.keys() for job in state.groups[number].jobs]
    sketch = state.sketch(touched, members)
    apply(sketch, plan, now, replace(arriving) if arriving is not None else None)
    return sketch


def apply(state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
    """Carry out the steps in order, then give the jobs of every touched group their new pace."""
    touched = touched_groups(state, plan)
    for number in touched & state.groups.keys():
        for name in state.groups[number].jobs:
            state.jobs[name].settle(now)
    for step in plan.steps:
        _carry_out(state, step, now, arriving)
    for number in touched & state.groups.keys():
        group = state.groups[number]
        expected = paces(group, group.mode)
        for name in group.jobs:
            state.jobs[name].pace = expected[name]


def _carry_out(state: ClusterState, step: PlanStep, now: float, arriving: MuxJob | None) -> None:
    match step.kind:
        case "open" | "place":
            assert arriving is not None and arriving.id == step.job, f"{step.job} is placed, but did not arrive"
            arriving.promise(now)
            state.jobs[step.job] = arriving
            _pin(state, step)
        case "move":
            state.jobs[step.job].pause(now)
            _detach(state, step.job)
            _pin(state, step)
        case "leave" | "resubmit" | "reserve":
            _detach(state, step.job, keep_phases=step.kind == "reserve")
            del state.jobs[step.job]
        case "arrange":
            group = state.groups[step.group]
            group.mode, group.order = step.mode, step.order
        case "retime":
            job, group = state.jobs[step.job], state.group_of(step.job)
            job.profile = job.profile.with_times(step.t_roll, step.t_train)
            group.retime(step.job, phases_at(job.profile, group.width))


def _pin(state: ClusterState, step: PlanStep) -> None:
    """Pin the job to its nodes. If the step has `train_nodes`, the group is new."""
    if step.train_nodes:
        state.train.take(step.train_nodes)
        state.groups[step.group] = CoGroup(step.group, step.train_nodes)
        state.next_group = max(state.next_group, step.group + 1)
    group = state.groups[step.group]
    state.rollout.take(step.new_nodes)
    group.add(step.job, phases_at(state.jobs[step.job].profile, group.width), step.nodes)
    state.home[step.job] = step.group


def _detach(state: ClusterState, job: str, keep_phases: bool = False) -> None:
    """Take the job out of its group. Nodes and groups without jobs go back to their pools."""
    group = state.groups[state.home.pop(job)]
    before = group.nodes
    if keep_phases:
        group.reserve(job)
    else:
        group.remove(job)
    kept = group.nodes
    state.rollout.give_back(tuple(node for node in before if node not in kept))
    if group.size == 0:
        state.train.give_back(group.train_nodes)
        del state.groups[group.id]
