"""What an observed iteration leads to: nothing, new estimates, somebody moved, or the paper's stop and resubmit.

Two reasons to act. The profile has drifted: adaptive policies replan with what they saw and, if a promise breaks,
move its victim (or the drifter) away; RollMux stops and resubmits a job whose real times saturate its group. Or a
member of a FIFO group is about to lose its way out (slo.py): it moves to where its promise is proved, at worst to
nodes of its own.

What a job's phases really last: planning starts with the worst case and may learn from the last iterations.

The estimate is an upper confidence bound of the mean, because an SLO over a whole job averages its iterations out.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rollweave.mux.decisions.departure import rearranged
from rollweave.mux.decisions.placement import find_place, moved
from rollweave.mux.decisions.plan import Plan, PlanStep, tried
from rollweave.mux.model.group import CoGroup, phases_at
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import fifo_bound, fifo_worst
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.model.slo import assess, by_deadline, has_way_out
from rollweave.mux.model.state import ClusterState

WINDOW = 10
"""Iterations remembered."""
CONFIDENCE = 2.0
"""Standard errors above the mean."""


def observed(job: MuxJob, t_roll: float, t_train: float) -> tuple[float, ...]:
    """The job's memory with one more iteration in it: rollout and train seconds alternately, the latest last."""
    return (*job.seen, t_roll, t_train)[-2 * WINDOW :]


def recent(job: MuxJob, count: int) -> tuple[float, float] | None:
    """Mean phases of the last `count` iterations, once there are as many."""
    if len(job.seen) < 2 * count:
        return None
    tail = job.seen[-2 * count :]
    return sum(tail[0::2]) / count, sum(tail[1::2]) / count


def upper(job: MuxJob, least: int) -> tuple[float, float] | None:
    """Phases the job will hardly exceed on average, once `least` iterations were seen."""
    if len(job.seen) < 2 * least:
        return None
    return _bound(job.seen[0::2]), _bound(job.seen[1::2])


def _bound(values: tuple[float, ...]) -> float:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean + CONFIDENCE * math.sqrt(variance / len(values))


def differs(job: MuxJob, t_roll: float, t_train: float, by: float) -> bool:
    """Is this worth replanning for?"""
    planned = job.profile
    return abs(t_roll - planned.t_roll) > by * planned.t_roll or abs(t_train - planned.t_train) > by * planned.t_train


DRIFT = 0.05
"""Relative change of a phase that is worth replanning for."""


def looked_out(state: ClusterState, job: MuxJob, now: float, policy: MuxPolicy) -> Plan:
    """The plan after an iteration of `job` was observed."""
    plan = _replanned(state, job, now, policy) if policy.adaptive else _resubmitted(state, job, policy)
    return plan or _rescued(state, job, now, policy)


def _resubmitted(state: ClusterState, job: MuxJob, policy: MuxPolicy) -> Plan:
    """RollMux section 5: stop a job whose drifted profile makes T_load reach T_cycle, and place it anew."""
    times, group = recent(job, policy.drift_window), state.group_of(job.id)
    if times is None or not differs(job, *times, DRIFT) or group.size == 1 or group.saturated:
        return Plan()
    trial = group.copy()
    trial.retime(job.id, phases_at(job.profile.with_times(*times), group.width))
    if not trial.saturated:
        return Plan()
    why = f"drifted to {times[0]:.0f} + {times[1]:.0f} s: T_load {trial.t_load:.0f} s >= T_cycle {trial.t_cycle:.0f} s"
    return Plan((PlanStep("resubmit", job.id, group.id, why, t_roll=times[0], t_train=times[1]),))


def _replanned(state: ClusterState, job: MuxJob, now: float, policy: MuxPolicy) -> Plan:
    times = upper(job, policy.drift_window)
    if times is None or not differs(job, *times, DRIFT):
        return Plan()
    why = f"observed {times[0]:.0f} + {times[1]:.0f} s, planned {job.profile.t_roll:.0f} + {job.profile.t_train:.0f} s"
    group = state.home[job.id]
    plan = Plan((PlanStep("retime", job.id, group, why, t_roll=times[0], t_train=times[1]),))
    return _mended(state, plan, group, now, policy)


def _rescued(state: ClusterState, job: MuxJob, now: float, policy: MuxPolicy) -> Plan:
    group = state.group_of(job.id)
    if group.mode == "rr" or group.size == 1 or not by_deadline(job, policy) or job.resumes_at > now:
        return Plan()
    if in_safety(group, job, now):
        return Plan()
    plan = moved_away(state, job, now, policy, "its way out is about to close")
    return _mended(state, plan, group.id, now, policy)


def _mended(state: ClusterState, plan: Plan, number: int, now: float, policy: MuxPolicy) -> Plan:
    """The plan, and what the rest of the group needs after it: another mode, or its victims moved away."""
    for _ in range(state.groups[number].size):
        after = tried(state, plan, now)
        group = after.groups.get(number)
        late = assess(group, after.jobs, now, policy, group.mode).late if group else None
        if group is None or late is None:
            return plan
        verdict = rearranged(after, group, now, policy)
        if verdict is not None:
            return plan + Plan((PlanStep("arrange", "", number, f"run {verdict.mode}", mode=verdict.mode),))
        away = moved_away(after, after.jobs[late.job], now, policy, "it would be late here")
        if not away:
            return plan
        plan += away
    return plan


def in_safety(group: CoGroup, job: MuxJob, now: float) -> bool:
    """In a FIFO group: in time whatever happens, or free to leave after one more iteration."""
    worst, rest = fifo_worst(group, job.id), job.remaining(now)
    if now + min(worst * rest, fifo_bound(group, job.id).within(rest)) <= job.deadline:
        return True
    return has_way_out(job, worst, now)


def moved_away(state: ClusterState, job: MuxJob, now: float, policy: MuxPolicy, why: str) -> Plan:
    """To the best other place, which always includes nodes of its own if there are any."""
    mover = replace(job)
    mover.pause(now)
    place = find_place(state, mover, now, policy, skip=state.home[job.id]).best
    return Plan(moved(state, job, place, why)) if place is not None else Plan()
