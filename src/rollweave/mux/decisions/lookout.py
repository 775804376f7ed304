"""What an observed iteration leads to: nothing, new estimates, somebody moved, or the paper's stop and resubmit.

Two reasons to act. The profile has drifted: adaptive policies replan with what they saw and, if a promise breaks,
move its victim (or the drifter) away; RollMux stops and resubmits a job whose real times saturate its group. Or a
member of a FIFO group is about to lose its way out (slo.py): it moves to where its promise is proved, at worst to
nodes of its own.
"""

from __future__ import annotations

from dataclasses import replace

from rollweave.mux.decisions.apply import tried
from rollweave.mux.decisions.departure import rearranged
from rollweave.mux.decisions.estimate import differs, recent, upper
from rollweave.mux.decisions.placement import find_place, moved
from rollweave.mux.decisions.plan import Plan, Step
from rollweave.mux.decisions.policy import Policy
from rollweave.mux.model.coexec import fifo_bound, fifo_worst
from rollweave.mux.model.group import Group, phases_at
from rollweave.mux.model.job import Job
from rollweave.mux.model.slo import by_deadline, has_way_out, judge
from rollweave.mux.model.state import ClusterState

DRIFT = 0.05
"""Relative change of a phase that is worth replanning for."""


def looked_out(state: ClusterState, job: Job, now: float, policy: Policy) -> Plan:
    """The plan after an iteration of `job` was observed."""
    plan = _replanned(state, job, now, policy) if policy.adaptive else _resubmitted(state, job, policy)
    return plan or _rescued(state, job, now, policy)


def _resubmitted(state: ClusterState, job: Job, policy: Policy) -> Plan:
    """RollMux section 5: stop a job whose drifted profile makes T_load reach T_cycle, and place it anew."""
    times, group = recent(job, policy.drift_window), state.group_of(job.id)
    if times is None or not differs(job, *times, DRIFT) or group.size == 1 or group.saturated:
        return Plan()
    trial = group.copy()
    trial.retime(job.id, phases_at(job.profile.with_times(*times), group.width))
    if not trial.saturated:
        return Plan()
    why = f"drifted to {times[0]:.0f} + {times[1]:.0f} s: T_load {trial.t_load:.0f} s >= T_cycle {trial.t_cycle:.0f} s"
    return Plan((Step("resubmit", job.id, group.id, why, t_roll=times[0], t_train=times[1]),))


def _replanned(state: ClusterState, job: Job, now: float, policy: Policy) -> Plan:
    times = upper(job, policy.drift_window)
    if times is None or not differs(job, *times, DRIFT):
        return Plan()
    why = f"observed {times[0]:.0f} + {times[1]:.0f} s, planned {job.profile.t_roll:.0f} + {job.profile.t_train:.0f} s"
    group = state.home[job.id]
    plan = Plan((Step("retime", job.id, group, why, t_roll=times[0], t_train=times[1]),))
    return _mended(state, plan, group, now, policy)


def _rescued(state: ClusterState, job: Job, now: float, policy: Policy) -> Plan:
    group = state.group_of(job.id)
    if group.mode == "rr" or group.size == 1 or not by_deadline(job, policy) or job.resumes_at > now:
        return Plan()
    if in_safety(group, job, now):
        return Plan()
    plan = moved_away(state, job, now, policy, "its way out is about to close")
    return _mended(state, plan, group.id, now, policy)


def _mended(state: ClusterState, plan: Plan, number: int, now: float, policy: Policy) -> Plan:
    """The plan, and what the rest of the group needs after it: another mode, or its victims moved away."""
    for _ in range(state.groups[number].size):
        after = tried(state, plan, now)
        group = after.groups.get(number)
        late = judge(group, after.jobs, now, policy, group.mode).late if group else None
        if group is None or late is None:
            return plan
        verdict = rearranged(after, group, now, policy)
        if verdict is not None:
            return plan + Plan((Step("arrange", "", number, f"run {verdict.mode}", mode=verdict.mode),))
        away = moved_away(after, after.jobs[late.job], now, policy, "it would be late here")
        if not away:
            return plan
        plan += away
    return plan


def in_safety(group: Group, job: Job, now: float) -> bool:
    """In a FIFO group: in time whatever happens, or free to leave after one more iteration."""
    worst, rest = fifo_worst(group, job.id), job.remaining(now)
    if now + min(worst * rest, fifo_bound(group, job.id).within(rest)) <= job.deadline:
        return True
    return has_way_out(job, worst, now)


def moved_away(state: ClusterState, job: Job, now: float, policy: Policy, why: str) -> Plan:
    """To the best other place, which always includes nodes of its own if there are any."""
    mover = replace(job)
    mover.pause(now)
    place = find_place(state, mover, now, policy, skip=state.home[job.id]).best
    return Plan(moved(state, job, place, why)) if place is not None else Plan()
