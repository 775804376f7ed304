"""Plans what to do after an observed iteration: nothing, new estimates, a move, or the paper's stop and resubmit.

There are two reasons to act. First, the profile of a job has drifted: adaptive policies plan again with the observed
times and, if that breaks an SLO, move the late job (or the drifted one) away; RollMux stops and resubmits a job whose
real times saturate its group. Second, a job of a FIFO group is about to lose its way out (slo.py): it moves to a place
where its SLO is proved, at worst to nodes of its own.

Planning starts with the worst case and learns from the last iterations. The estimate is an upper confidence bound of
the mean, because the SLO of a whole job depends on the mean of its iterations.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rollweave.mux.decisions.departure import choose_mode
from rollweave.mux.decisions.placement import find_place, move_steps
from rollweave.mux.decisions.plan import Plan, PlanStep, try_plan
from rollweave.mux.model.group import CoGroup, phases_at
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import fifo_bound, fifo_worst
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.model.slo import assess, by_deadline, has_way_out
from rollweave.mux.model.state import ClusterState

DRIFT = 0.05
"""The relative change of a phase after which a new plan is made."""


def plan_after_iteration(state: ClusterState, job: MuxJob, now: float, policy: MuxPolicy) -> Plan:
    """The plan after an iteration of `job` was observed."""
    plan = _replan(state, job, now, policy) if policy.adaptive else _resubmit(state, job, policy)
    return plan or _rescue(state, job, now, policy)


def _resubmit(state: ClusterState, job: MuxJob, policy: MuxPolicy) -> Plan:
    """RollMux section 5: stop a job whose drifted profile makes T_load reach T_cycle, and place it anew."""
    times, group = recent_means(job, policy.drift_window), state.group_of(job.id)
    if times is None or not has_drifted(job, *times, DRIFT) or group.size == 1 or group.saturated:
        return Plan()
    trial = group.copy()
    trial.retime(job.id, phases_at(job.profile.with_times(*times), group.width))
    if not trial.saturated:
        return Plan()
    why = f"drifted to {times[0]:.0f} + {times[1]:.0f} s: T_load {trial.t_load:.0f} s >= T_cycle {trial.t_cycle:.0f} s"
    return Plan((PlanStep("resubmit", job.id, group.id, why, t_roll=times[0], t_train=times[1]),))


def _replan(state: ClusterState, job: MuxJob, now: float, policy: MuxPolicy) -> Plan:
    times = upper_bounds(job, policy.drift_window)
    if times is None or not has_drifted(job, *times, DRIFT):
        return Plan()
    why = f"observed {times[0]:.0f} + {times[1]:.0f} s, planned {job.profile.t_roll:.0f} + {job.profile.t_train:.0f} s"
    group = state.home[job.id]
    plan = Plan((PlanStep("retime", job.id, group, why, t_roll=times[0], t_train=times[1]),))
    return _repair(state, plan, group, now, policy)


def _rescue(state: ClusterState, job: MuxJob, now: float, policy: MuxPolicy) -> Plan:
    group = state.group_of(job.id)
    if group.mode == "rr" or group.size == 1 or not by_deadline(job, policy) or job.resumes_at > now:
        return Plan()
    if is_safe(group, job, now):
        return Plan()
    plan = plan_move_away(state, job, now, policy, "its way out is about to close")
    return _repair(state, plan, group.id, now, policy)


def _repair(state: ClusterState, plan: Plan, number: int, now: float, policy: MuxPolicy) -> Plan:
    """Add to the plan what the rest of the group needs after it: another mode, or moves of jobs that would be late."""
    for _ in range(state.groups[number].size):
        after = try_plan(state, plan, now)
        group = after.groups.get(number)
        late = assess(group, after.jobs, now, policy, group.mode).late if group else None
        if group is None or late is None:
            return plan
        verdict = choose_mode(after, group, now, policy)
        if verdict is not None:
            return plan + Plan((PlanStep("arrange", "", number, f"run {verdict.mode}", mode=verdict.mode),))
        away = plan_move_away(after, after.jobs[late.job], now, policy, "it would be late here")
        if not away:
            return plan
        plan += away
    return plan


def is_safe(group: CoGroup, job: MuxJob, now: float) -> bool:
    """Whether a job of a FIFO group is in time in any case, or can still leave after one more iteration."""
    worst, rest = fifo_worst(group, job.id), job.remaining(now)
    if now + min(worst * rest, fifo_bound(group, job.id).within(rest)) <= job.deadline:
        return True
    return has_way_out(job, worst, now)


def plan_move_away(state: ClusterState, job: MuxJob, now: float, policy: MuxPolicy, why: str) -> Plan:
    """Move the job to the best other place. Nodes of its own are always considered, if the pools have some."""
    mover = replace(job)
    mover.pause(now)
    place = find_place(state, mover, now, policy, skip=state.home[job.id]).best
    return Plan(move_steps(state, job, place, why)) if place is not None else Plan()


# --------------------------------------------------------------------------------- estimates from past iterations

WINDOW = 10
"""The number of iterations that are remembered."""
CONFIDENCE = 2.0
"""The upper bound is so many standard errors above the mean."""


def remember_iteration(job: MuxJob, t_roll: float, t_train: float) -> tuple[float, ...]:
    """The job's past phase times with one more iteration: rollout and train seconds alternate, the latest are last."""
    return (*job.seen, t_roll, t_train)[-2 * WINDOW :]


def recent_means(job: MuxJob, count: int) -> tuple[float, float] | None:
    """The mean phases of the last `count` iterations; None while there are fewer."""
    if len(job.seen) < 2 * count:
        return None
    tail = job.seen[-2 * count :]
    return sum(tail[0::2]) / count, sum(tail[1::2]) / count


def upper_bounds(job: MuxJob, least: int) -> tuple[float, float] | None:
    """Phase times that the job will hardly exceed on average; None before `least` iterations."""
    if len(job.seen) < 2 * least:
        return None
    return _bound(job.seen[0::2]), _bound(job.seen[1::2])


def _bound(values: tuple[float, ...]) -> float:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean + CONFIDENCE * math.sqrt(variance / len(values))


def has_drifted(job: MuxJob, t_roll: float, t_train: float, by: float) -> bool:
    """Whether a phase differs from the plan by more than the share `by`."""
    planned = job.profile
    return abs(t_roll - planned.t_roll) > by * planned.t_roll or abs(t_train - planned.t_train) > by * planned.t_train
