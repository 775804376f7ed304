"""Is everybody's promise kept? One question, asked of a group as it would be after a step.

Per iteration (the paper): no iteration longer than slo x T_solo. Per job (`banking`): the rest of the work, at the
guaranteed speed, ends before the deadline; time saved so far may be spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from rollweave.mux.coexec import fifo_bound, fifo_worst, meta_period
from rollweave.mux.fifo import fifo_means
from rollweave.mux.group import Group, Mode
from rollweave.mux.job import Job
from rollweave.mux.policy import Policy

SLACK = 1e-9
"""Relative: sums of the same numbers in another order may differ in the last digits."""


class Late(NamedTuple):
    """Whose promise would break: `seconds` per iteration against the `limit` it tolerates."""

    job: str
    seconds: float
    limit: float
    slo: float
    solo_s: float


def time_left(job: Job, now: float, policy: Policy) -> float:
    """Seconds until its deadline that may be planned with, from when it can run again."""
    left = job.deadline - max(now, job.resumes_at)
    return left - policy.reserve * max(0.0, left - job.remaining(now) * job.solo_s)


def limit(job: Job, now: float, policy: Policy) -> float:
    """The longest mean iteration the job tolerates from now on under round robin."""
    if not policy.banking or math.isinf(job.n_iters):
        return job.slo * job.solo_s
    return time_left(job, now, policy) / (job.remaining(now) + policy.guard_iters)


def first_late(group: Group, jobs: Mapping[str, Job], now: float, policy: Policy, mode: Mode) -> Late | None:
    """The first member whose promise the group, run in this mode, would not keep."""
    if len(group.pins) == 1:
        return None  # alone is what its SLO is measured against
    period = meta_period(group) if mode == "rr" else 0.0
    means = fifo_means(group) if mode == "fifo" and policy.fifo == "simulated" else {}
    for name in group.jobs:
        job = jobs[name]
        tolerated = limit(job, now, policy)
        needed = period or means.get(name) or _fifo_needed(group, job, now, policy)
        if needed > tolerated * (1 + SLACK):
            return Late(name, needed, tolerated, job.slo, job.solo_s)
    return None


def _fifo_needed(group: Group, job: Job, now: float, policy: Policy) -> float:
    """The guaranteed mean iteration, made comparable with `limit`."""
    worst = fifo_worst(group, job.id)
    if not policy.banking or math.isinf(job.n_iters):
        return worst
    left = job.remaining(now)
    # The bound holds from any moment on and needs no guard iterations: undo those in `limit`.
    seconds = min(worst * left, fifo_bound(group, job.id).within(left))
    return seconds / (left + policy.guard_iters)


def best_mode(group: Group, jobs: Mapping[str, Job], now: float, policy: Policy) -> tuple[Mode | None, Late | None]:
    """A mode that keeps every promise, or the first broken one."""
    if policy.fifo != "off" and not group.gang and len(group.pins) > 1:
        late = first_late(group, jobs, now, policy, "fifo")
        if late is None:
            return "fifo", None
    late = first_late(group, jobs, now, policy, "rr")
    return ("rr", None) if late is None else (None, late)


def paces(group: Group) -> dict[str, float]:
    """Expected mean iteration of every member, in the group's mode."""
    if group.mode == "rr" or len(group.pins) == 1:
        return dict.fromkeys(group.pins, meta_period(group))
    means = fifo_means(group)
    # Long-run means never exceed the proved bound; a finite run may, by its transient.
    return {job: min(mean, fifo_bound(group, job).per_iter) for job, mean in means.items()}
