"""What a job's phases really last: planning starts with the worst case and may learn from the last iterations.

The estimate is an upper confidence bound of the mean, because an SLO over a whole job averages its iterations out.
"""

from __future__ import annotations

import math

from rollweave.mux.model.job import Job

WINDOW = 10
"""Iterations remembered."""
CONFIDENCE = 2.0
"""Standard errors above the mean."""


def observed(job: Job, t_roll: float, t_train: float) -> tuple[float, ...]:
    """The job's memory with one more iteration in it: rollout and train seconds in turn, the latest last."""
    return (*job.seen, t_roll, t_train)[-2 * WINDOW :]


def recent(job: Job, count: int) -> tuple[float, float] | None:
    """Mean phases of the last `count` iterations, once there are as many."""
    if len(job.seen) < 2 * count:
        return None
    tail = job.seen[-2 * count :]
    return sum(tail[0::2]) / count, sum(tail[1::2]) / count


def upper(job: Job, least: int) -> tuple[float, float] | None:
    """Phases the job will hardly exceed on average, once `least` iterations were seen."""
    if len(job.seen) < 2 * least:
        return None
    return _bound(job.seen[0::2]), _bound(job.seen[1::2])


def _bound(values: tuple[float, ...]) -> float:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean + CONFIDENCE * math.sqrt(variance / len(values))


def differs(job: Job, t_roll: float, t_train: float, by: float) -> bool:
    """Is this worth replanning for?"""
    planned = job.profile
    return abs(t_roll - planned.t_roll) > by * planned.t_roll or abs(t_train - planned.t_train) > by * planned.t_train
