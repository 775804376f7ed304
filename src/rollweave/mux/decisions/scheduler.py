"""The scheduler: pure decisions about a state. `plan = arrive(...)`, look at it, then `apply` it.

The same object serves the trace replay and the daemon. It holds no state but its policy; time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from rollweave.mux.decisions.departure import consolidated, left_safely
from rollweave.mux.decisions.invariants import check_plan
from rollweave.mux.decisions.lookout import looked_out, observed
from rollweave.mux.decisions.placement import find_place, placed
from rollweave.mux.decisions.plan import Plan, PlanStep, apply, tried
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import ROLLMUX, MuxPolicy
from rollweave.mux.model.state import ClusterState


class Decider(Protocol):
    """What a policy has to answer; `Scheduler` does, and so does every baseline."""

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan: ...
    def depart(self, state: ClusterState, job: str, now: float) -> Plan: ...
    def fail(self, state: ClusterState, job: str, now: float) -> Plan: ...
    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan: ...
    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Scheduler:
    policy: MuxPolicy = ROLLMUX

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        """Where a new (or resubmitted) job goes; a `wait` step if the pools have no room for it."""
        candidate = replace(job)
        candidate.promise(now)
        search = find_place(state, candidate, now, self.policy)
        if search.best is None:
            why = "no group can take it and the pools have no free nodes"
            return Plan((PlanStep("wait", job.id, why=why),), tuple(search.rejections))
        plan = Plan(placed(state, job, search.best), tuple(search.rejections))
        if search.best.group or not self.policy.consolidation:
            return plan
        # A new group has room that others may have been waiting for.
        return plan + consolidated(tried(state, plan, now, job), 0, now, self.policy)

    def depart(self, state: ClusterState, job: str, now: float) -> Plan:
        """A job has finished (or was cancelled): it leaves, and the rest may be tidied up."""
        return self._gone(state, job, now, "finished")

    def fail(self, state: ClusterState, job: str, now: float) -> Plan:
        """A job crashed: it is removed at once, the others go on. Resubmission is a new arrival."""
        return self._gone(state, job, now, "failed")

    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan:
        """One finished iteration's real phase times; mostly an empty plan.

        The times are remembered at once: a measurement is a fact, not a decision.
        """
        state.jobs[job].seen = observed(state.jobs[job], t_roll, t_train)
        return looked_out(state, state.jobs[job], now, self.policy)

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
        """Check the plan on a copy of what it touches, then carry it out. `arriving`: the job of an `arrive` plan."""
        if plan:
            check_plan(state, plan, now, self.policy, arriving)
            apply(state, plan, now, arriving)

    def _gone(self, state: ClusterState, job: str, now: float, why: str) -> Plan:
        group = state.home[job]
        plan = left_safely(state, job, now, self.policy, why)
        if not self.policy.consolidation:
            return plan
        return plan + consolidated(tried(state, plan, now), group, now, self.policy)
