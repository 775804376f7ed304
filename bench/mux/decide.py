"""Decisions of one policy in a cluster that already runs many jobs, each timed by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median

from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import policy
from rollweave.mux.model.state import ClusterState
from rollweave.seeds import generator
from rollweave_experiments.rollmux.crowd import crowd, draw_job


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
    scheduler, draw = Scheduler(policy(name)), generator(0, "bench", "mux", running)
    state = crowd(scheduler.policy, running, draw)
    latencies = Latencies()
    for number in range(decisions):
        now = 60.0 * (number + 1)
        latencies.arrive.append(_arrive(scheduler, state, draw_job(f"new {number}", draw), now))
        latencies.depart.append(_depart(scheduler, state, draw.choice(list(state.jobs)), now))
    return latencies.row(name, running, len(state.groups))


def _arrive(scheduler: Scheduler, state: ClusterState, job: MuxJob, now: float) -> float:
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
