"""Checks whether a co-group, as it would be after a plan, keeps the SLO of every job.

Per iteration (the paper): no iteration is longer than slo x T_solo. Per job (`banking`): the rest of the work, at the
planned pace, ends before the deadline, so that time saved so far may be used.

If the pace is proved (round robin, the FIFO bound), that is sufficient. If it is simulated, every job must also keep
a way out until its end: enough time to move to nodes of its own after one more worst-case iteration. `lookout.py` makes
that move before it becomes impossible, so no SLO depends on the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from rollweave.mux.model.group import CoGroup, Mode
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import fifo_bound, fifo_means, fifo_worst, meta_period
from rollweave.mux.model.policy import MuxPolicy

SLACK = 1 + 1e-9
"""Tolerance for sums of the same numbers in another order, which may differ in the last digits."""


class Late(NamedTuple):
    """A job that would break its SLO: it would take `seconds` per iteration and tolerates `limit`."""

    job: str
    seconds: float
    limit: float


class Verdict(NamedTuple):
    """What running a group in `mode` means for its jobs: their paces, and the first broken SLO, if any."""

    mode: Mode
    paces: Mapping[str, float]
    late: Late | None = None


def by_deadline(job: MuxJob, policy: MuxPolicy) -> bool:
    """Whether the SLO of the job applies to the whole job and not to every iteration."""
    return policy.banking and not math.isinf(job.n_iters)


def time_left(job: MuxJob, now: float) -> float:
    """Seconds from the time at which the job can run (again) to its deadline."""
    return job.deadline - max(now, job.resumes_at)


def limit(job: MuxJob, now: float, policy: MuxPolicy) -> float:
    """The longest mean iteration that the job tolerates from now on."""
    promised = job.slo * job.solo_s
    if by_deadline(job, policy):
        # A job that joins waits up to one lap for its first phase.
        joining = job.resumes_at >= now
        return time_left(job, now) / (job.remaining(now) + policy.guard_iters + joining)
    if math.isinf(job.moved_at) or math.isinf(job.n_iters):
        return promised
    # A move pauses the job while the time of its SLO goes on, so less than `promised` may be left. At least one
    # iteration counts as left: by the estimate a job may be done although in fact it is late.
    return min(promised, time_left(job, now) / max(1.0, job.remaining(now)))


def has_way_out(job: MuxJob, worst: float, now: float) -> bool:
    """Whether the job, after one more iteration of `worst` seconds, could move to nodes of its own and be in time."""
    return max(now, job.resumes_at) + worst + job.profile.move_s + job.remaining(now) * job.solo_s <= job.deadline


def assess(group: CoGroup, jobs: Mapping[str, MuxJob], now: float, policy: MuxPolicy, mode: Mode) -> Verdict:
    """Assess the group in this mode: the paces of its jobs, and the first SLO that would break."""
    expected = paces(group, mode)
    if len(group.pins) == 1:
        return Verdict(mode, expected)  # the SLO is relative to this very case, a job alone
    for name in group.jobs:
        job, pace = jobs[name], expected[name]
        late = _late(job, pace, now, policy) if mode == "rr" else _late_fifo(group, job, pace, now, policy)
        if late is not None:
            return Verdict(mode, expected, late)
    return Verdict(mode, expected)


def paces(group: CoGroup, mode: Mode) -> dict[str, float]:
    """The expected mean iteration of every job (and phantom), if the group runs in `mode`."""
    if mode == "rr" or len(group.pins) == 1:
        return dict.fromkeys(group.pins, meta_period(group))
    return fifo_means(group)


def _late(job: MuxJob, pace: float, now: float, policy: MuxPolicy) -> Late | None:
    tolerated = limit(job, now, policy)
    return Late(job.id, pace, tolerated) if pace > tolerated * SLACK else None


def _late_fifo(group: CoGroup, job: MuxJob, mean: float, now: float, policy: MuxPolicy) -> Late | None:
    """None if the job is in time by proof, or by simulation with a way out."""
    worst = fifo_worst(group, job.id)
    if not by_deadline(job, policy):
        return _late(job, worst, now, policy)
    rest, left = job.remaining(now), time_left(job, now)
    if min(worst * rest, fifo_bound(group, job.id).within(rest)) <= left * SLACK:
        return None
    # Only a proof may use banked time: a simulated pace must keep the SLO without it.
    tolerated = min(job.slo * job.solo_s, (left - worst - job.profile.move_s) / max(1.0, rest))
    if policy.fifo == "simulated" and mean <= tolerated * SLACK:
        return None
    return Late(job.id, mean, tolerated)
