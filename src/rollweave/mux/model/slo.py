"""Is everybody's promise kept? One question, asked of a group as it would be after a step.

Per iteration (the paper): no iteration longer than slo x T_solo. Per job (`banking`): the rest of the work, at the
planned pace, ends before the deadline; time saved so far may be spent.

Where the pace is proved (round robin, the FIFO bound) that is all. Where it is simulated, every member must also
keep a way out to the very end: enough time to be moved to nodes of its own after one more worst-case iteration.
`lookout.py` takes that way before it closes, so the promise never rests on the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rollweave.mux.model.group import CoGroup, Mode
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import fifo_bound, fifo_means, fifo_worst, meta_period
from rollweave.mux.model.policy import MuxPolicy

SLACK = 1 + 1e-9
"""Sums of the same numbers in another order may differ in the last digits."""


class Late(NamedTuple):
    """Whose promise would break: `seconds` per iteration against the `limit` it tolerates."""

    job: str
    seconds: float
    limit: float


class Verdict(NamedTuple):
    """What running the group in `mode` means for its members: their paces, or the first broken promise."""

    mode: Mode
    paces: Mapping[str, float]
    late: Late | None = None


def by_deadline(job: MuxJob, policy: MuxPolicy) -> bool:
    return policy.banking and not math.isinf(job.n_iters)


def time_left(job: MuxJob, now: float) -> float:
    """Seconds until its deadline, from when it can run again."""
    return job.deadline - max(now, job.resumes_at)


def limit(job: MuxJob, now: float, policy: MuxPolicy) -> float:
    """The longest mean iteration the job tolerates from now on."""
    promised = job.slo * job.solo_s
    if by_deadline(job, policy):
        # A job that joins waits up to one lap for its first permit.
        joining = job.resumes_at >= now
        return time_left(job, now) / (job.remaining(now) + policy.guard_iters + joining)
    if math.isinf(job.moved_at) or math.isinf(job.n_iters):
        return promised
    # A move stops it while its clock goes on: what is left of the promise may be less. One iteration is left at least:
    # by the estimate a job may be done when in fact it is late.
    return min(promised, time_left(job, now) / max(1.0, job.remaining(now)))


def has_way_out(job: MuxJob, worst: float, now: float) -> bool:
    """Could it, after one more iteration of `worst` seconds, still move to nodes of its own and be in time?"""
    return max(now, job.resumes_at) + worst + job.profile.move_s + job.remaining(now) * job.solo_s <= job.deadline


def assess(group: CoGroup, jobs: Mapping[str, MuxJob], now: float, policy: MuxPolicy, mode: Mode) -> Verdict:
    """Run the group in this mode: paces of the members, and the first promise that breaks."""
    members = group.jobs
    if mode == "rr" or len(group.pins) == 1:
        paces = dict.fromkeys(members, meta_period(group))
        if len(group.pins) == 1:
            return Verdict(mode, paces)  # alone is what its SLO is measured against
        return Verdict(mode, paces, _first(_late(jobs[name], paces[name], now, policy) for name in members))
    means = fifo_means(group)
    return Verdict(mode, means, _first(_late_fifo(group, jobs[name], means[name], now, policy) for name in members))


def _first(lates: Iterable[Late | None]) -> Late | None:
    return next((late for late in lates if late is not None), None)


def _late(job: MuxJob, pace: float, now: float, policy: MuxPolicy) -> Late | None:
    tolerated = limit(job, now, policy)
    return Late(job.id, pace, tolerated) if pace > tolerated * SLACK else None


def _late_fifo(group: CoGroup, job: MuxJob, mean: float, now: float, policy: MuxPolicy) -> Late | None:
    """In time by proof, or by simulation with a way out."""
    worst = fifo_worst(group, job.id)
    if not by_deadline(job, policy):
        return _late(job, worst, now, policy)
    rest, left = job.remaining(now), time_left(job, now)
    if min(worst * rest, fifo_bound(group, job.id).within(rest)) <= left * SLACK:
        return None
    # Banked time is spent against a proof only: a simulated pace has to keep the promise by itself.
    tolerated = min(job.slo * job.solo_s, (left - worst - job.profile.move_s) / max(1.0, rest))
    if policy.fifo == "simulated" and mean <= tolerated * SLACK:
        return None
    return Late(job.id, mean, tolerated)


def paces(group: CoGroup) -> dict[str, float]:
    """Expected mean iteration of every member, in the group's mode."""
    if group.mode == "rr" or len(group.pins) == 1:
        return dict.fromkeys(group.pins, meta_period(group))
    return fifo_means(group)
