"""The scheduler: pure decisions about a state. `plan = arrive(...)`, look at it, then `apply` it.

The same object serves the trace replay and the daemon. It holds no state but its policy; time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollweave.mux.apply import apply
from rollweave.mux.job import Job
from rollweave.mux.placement import Place, find_place
from rollweave.mux.plan import Plan, Step
from rollweave.mux.policy import ROLLMUX, Policy
from rollweave.mux.state import ClusterState


@dataclass(frozen=True, slots=True)
class Scheduler:
    policy: Policy = ROLLMUX

    def arrive(self, state: ClusterState, job: Job, now: float) -> Plan:
        """Where a new (or resubmitted) job goes; a `wait` step if the pools have no room for it."""
        candidate = replace(job)
        candidate.promise(now)
        search = find_place(state, candidate, now, self.policy)
        if search.best is None:
            return Plan((Step("wait", job.id, why="no group can take it and the pools have no free nodes"),))
        return Plan(_placed(state, job.id, search.best, job.profile.n_train), tuple(search.rejections))

    def depart(self, state: ClusterState, job: str, now: float) -> Plan:
        """A job has finished (or was cancelled): it leaves, and the rest may be tidied up."""
        return Plan((Step("leave", job, state.home[job], "finished"),))

    def fail(self, state: ClusterState, job: str, now: float) -> Plan:
        """A job crashed: it is removed at once, the others go on. Resubmission is a new arrival."""
        return Plan((Step("leave", job, state.home[job], "failed"),))

    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan:
        """One finished iteration's real phase times; mostly an empty plan."""
        return Plan()

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: Job | None = None) -> None:
        """Check the plan on a copy of what it touches, then carry it out. `arriving`: the job of an `arrive` plan."""
        apply(state, plan, now, arriving)


def _placed(state: ClusterState, job: str, place: Place, width: int) -> tuple[Step, ...]:
    if place.group == 0:
        group = state.next_group
        train = state.train.peek(width)
        return (Step("open", job, group, f"new group, +${place.cost:.2f}/h", place.nodes, place.new, train),)
    how = f"rollout scaling by {len(place.new)}" if place.new else "direct packing"
    why = f"{how} into group {place.group}, +${place.cost:.2f}/h"
    steps = [Step("place", job, place.group, why, place.nodes, place.new)]
    group_now = state.groups[place.group]
    if place.mode != group_now.mode or place.order:
        steps.append(Step("arrange", "", place.group, f"run {place.mode}", mode=place.mode, order=place.order))
    return tuple(steps)
