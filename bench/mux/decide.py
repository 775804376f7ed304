"""Decisions of one policy in a cluster that already runs many jobs, each timed by itself."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from statistics import median

from rollweave.mux.job import Job
from rollweave.mux.policy import policy
from rollweave.mux.profile import JobProfile
from rollweave.mux.scheduler import Scheduler
from rollweave.mux.state import ClusterState
from rollweave.seeds import generator

SIZES = ((50, 100), (100, 200), (200, 300))
"""Seconds per phase of small, medium and large balanced jobs (RollMux table 6)."""
SKEWS = ((1.0, 1.0), (2.0, 0.6), (0.6, 2.0))
"""Balanced, rollout-heavy, train-heavy."""


@dataclass
class Latencies:
    """Milliseconds."""

    arrive: list[float] = field(default_factory=list)
    depart: list[float] = field(default_factory=list)

    def row(self, name: str, running: int, groups: int) -> dict[str, float | int | str]:
        every = self.arrive + self.depart
        return {
            "policy": name,
            "running": running,
            "groups": groups,
            "median_ms": round(median(every), 3),
            "arrive_median_ms": round(median(self.arrive), 3),
            "depart_median_ms": round(median(self.depart), 3),
            "worst_ms": round(max(every), 3),
        }


def measure(name: str, running: int, decisions: int) -> dict[str, float | int | str]:
    """Fill a cluster, then let one job come and one go, again and again."""
    scheduler, state, draw = Scheduler(policy(name)), ClusterState(), generator(0, "bench", "mux", running)
    # Nobody is timed while the cluster fills; without moves and with a few trials each that is quick.
    filling = Scheduler(replace(scheduler.policy, consolidation=False, max_judged=4))
    for number in range(running):
        _arrive(filling, state, _job(f"{number}", draw), 0.0)
    latencies = Latencies()
    for number in range(decisions):
        now = 60.0 * (number + 1)
        latencies.arrive.append(_arrive(scheduler, state, _job(f"new {number}", draw), now))
        latencies.depart.append(_depart(scheduler, state, draw.choice(list(state.jobs)), now))
    return latencies.row(name, running, len(state.groups))


def _job(name: str, draw: random.Random) -> Job:
    low, high = draw.choice(SIZES)
    roll, train = draw.choice(SKEWS)
    profile = JobProfile(roll * draw.uniform(low, high), train * draw.uniform(low, high))
    return Job(name, profile, draw.uniform(1, 2), draw.randint(50, 500))


def _arrive(scheduler: Scheduler, state: ClusterState, job: Job, now: float) -> float:
    began = time.perf_counter()
    plan = scheduler.arrive(state, job, now)
    took = time.perf_counter() - began
    scheduler.apply(state, plan, now, job)
    return 1000 * took


def _depart(scheduler: Scheduler, state: ClusterState, job: str, now: float) -> float:
    began = time.perf_counter()
    plan = scheduler.depart(state, job, now)
    took = time.perf_counter() - began
    scheduler.apply(state, plan, now)
    return 1000 * took
