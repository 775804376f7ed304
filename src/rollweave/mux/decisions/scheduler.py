"""The scheduler of the multiplexer: it makes plans for a state (`plan = arrive(...)`) and applies them (`apply`).

The replay of a trace and the daemon use the same class. It has no state except its policy; time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from rollweave.mux.decisions.departure import plan_consolidation, plan_departure
from rollweave.mux.decisions.invariants import check_plan
from rollweave.mux.decisions.lookout import plan_after_iteration, remember_iteration
from rollweave.mux.decisions.placement import find_place, placement_steps
from rollweave.mux.decisions.plan import Plan, PlanStep, apply, try_plan
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import ROLLMUX, MuxPolicy
from rollweave.mux.model.state import ClusterState


class Decider(Protocol):
    """What a policy has to answer; `Scheduler` does, and so does every baseline."""

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan: ...
    def depart(self, state: ClusterState, job: str, now: float, why: str = "finished") -> Plan: ...
    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan: ...
    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Decides where mux jobs go."""

    policy: MuxPolicy = ROLLMUX

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        """Place a new (or resubmitted) job. The plan is a `wait` step if the pools have too few free nodes."""
        candidate = replace(job)
        candidate.promise(now)
        search = find_place(state, candidate, now, self.policy)
        if search.best is None:
            why = "no group can take it and the pools have no free nodes"
            return Plan((PlanStep("wait", job.id, why=why),), tuple(search.rejections))
        plan = Plan(placement_steps(state, job, search.best), tuple(search.rejections))
        if search.best.group or not self.policy.consolidation:
            return plan
        # Jobs of other groups may move into the new group.
        return plan + plan_consolidation(try_plan(state, plan, now, job), 0, now, self.policy)

    def depart(self, state: ClusterState, job: str, now: float, why: str = "finished") -> Plan:
        """A job has finished, failed or was cancelled: it leaves at once, and small groups may be consolidated. A job
        that comes back is a new arrival."""
        group = state.home[job]
        plan = plan_departure(state, job, now, self.policy, why)
        if not self.policy.consolidation:
            return plan
        return plan + plan_consolidation(try_plan(state, plan, now), group, now, self.policy)

    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan:
        """React to the real phase times of a finished iteration. The plan is mostly empty.

        The times are stored in the state at once, because they are a measurement and not a decision.
        """
        state.jobs[job].seen = remember_iteration(state.jobs[job], t_roll, t_train)
        return plan_after_iteration(state, state.jobs[job], now, self.policy)

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
        """Check the plan on a copy, then carry it out. `arriving` is the job of an `arrive` plan."""
        if plan:
            check_plan(state, plan, now, self.policy, arriving)
            apply(state, plan, now, arriving)
