"""The books of a replay: dollars, busy node-seconds, iterations in and out of their SLO.

Provisioned nodes are paid whether they work or not. Between two events nothing changes but progress, and progress is
linear, so every entry is an exact integral over the time since the last event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.state import GPUS_PER_NODE, ClusterState, NodePool

SLACK = 1e-9
"""Relative: a sum taken in another order is not a broken promise."""


class CostPoint(NamedTuple):
    """From this moment on, until the next point."""

    at_s: float
    cost_per_h: float
    rollout_gpus: int
    train_gpus: int


@dataclass(slots=True)
class PoolBooks:
    provisioned_s: float = 0.0
    busy_s: float = 0.0
    peak: int = 0

    @property
    def bubble(self) -> float:
        """Share of what was paid for that did no work: waiting, switching, cold starts, moves."""
        return 1 - self.busy_s / self.provisioned_s if self.provisioned_s else 0.0


@dataclass(slots=True)
class ReplayBooks:
    now: float = 0.0
    dollars: float = 0.0
    rollout: PoolBooks = field(default_factory=PoolBooks)
    train: PoolBooks = field(default_factory=PoolBooks)
    peak_gpus: int = 0
    iterations: float = 0.0
    iterations_in_slo: float = 0.0
    points: list[CostPoint] = field(default_factory=list)

    def advance(self, state: ClusterState, now: float) -> None:
        """Book everything between the last event and this one; `state` is as it was in between."""
        span = now - self.now
        if span > 0:
            self._note(state)
            self.dollars += state.cost() * span / 3600
            self.rollout.provisioned_s += state.rollout.used * span
            self.train.provisioned_s += state.train.used * span
            for group in state.groups.values():
                for name in group.jobs:
                    self._work(group, state.jobs[name], now)
        self.now = now

    def late_iteration(self, job: MuxJob, pause_s: float) -> None:
        """A pause fell into an iteration: it was counted as in time, unless it still is."""
        if job.pace + pause_s > job.slo * job.solo_s * (1 + SLACK) >= job.pace and job.done_at(self.now) < job.n_iters:
            self.iterations_in_slo -= 1

    def _note(self, state: ClusterState) -> None:
        gpus = [_gpus(state.rollout), _gpus(state.train)]
        self.rollout.peak, self.train.peak = max(self.rollout.peak, gpus[0]), max(self.train.peak, gpus[1])
        self.peak_gpus = max(self.peak_gpus, sum(gpus))
        point = CostPoint(self.now, state.cost(), *gpus)
        if not self.points or self.points[-1][1:] != point[1:]:
            self.points.append(point)

    def _work(self, group: CoGroup, job: MuxJob, now: float) -> None:
        gained = job.done_at(now) - job.done_at(self.now)
        phases = group.phases[job.id]
        self.rollout.busy_s += gained * phases.roll * phases.n_roll
        self.train.busy_s += gained * phases.train * group.width
        self.iterations += gained
        if job.pace <= job.slo * job.solo_s * (1 + SLACK):
            self.iterations_in_slo += gained


def _gpus(pool: NodePool) -> int:
    """A pool that costs nothing stands for nodes that are not there (jobs co-located on train nodes)."""
    return round(pool.used * GPUS_PER_NODE) if pool.price else 0
