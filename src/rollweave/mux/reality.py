"""What phases really last, where that is not what was profiled: drift of response lengths, migration of long tails.

The scheduler goes on planning with profiles; the replay asks here for the pace that jobs really have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rollweave.mux.group import Group
from rollweave.mux.job import Job
from rollweave.mux.migration import Migration
from rollweave.mux.slo import paces
from rollweave.mux.state import ClusterState

DRIFT_OVER = 90
"""Iterations over which a profile changes; flat afterwards (RollMux's drift figure shows 90 steps)."""


class Drift(NamedTuple):
    """Phases grow (or shrink) linearly to `1 + change` times their profile."""

    change: float = 0.0

    def factor(self, done: float) -> float:
        return max(0.05, 1 + self.change * min(1.0, done / DRIFT_OVER))


@dataclass(slots=True)
class Reality:
    migration: Migration | None = None
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    profiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What each job was submitted with: the scheduler may have corrected its own copy since."""
    every_s: float = math.inf
    """How often jobs report their times."""

    def settle(self, state: ClusterState, now: float) -> None:
        """Give every job the pace it really has from now on."""
        for group in state.groups.values():
            for name in group.jobs:
                state.jobs[name].settle(now)
            for name, pace in self._paces(group, state, now).items():
                if name in state.jobs:
                    state.jobs[name].pace = pace

    def measured(self, job: Job, now: float) -> tuple[float, float]:
        """Rollout and train seconds of the iteration that ends now."""
        t_roll, t_train = self.profiles.setdefault(job.id, (job.profile.t_roll, job.profile.t_train))
        factor = self.drifts.get(job.id, Drift()).factor(job.done_at(now))
        return t_roll * factor, t_train * factor

    def _paces(self, group: Group, state: ClusterState, now: float) -> dict[str, float]:
        real = group.copy() if self.drifts else group
        for name in group.jobs if self.drifts else ():
            job = state.jobs[name]
            t_roll, t_train = self.measured(job, now)
            own = group.phases[name]
            scale = own.train / job.profile.train_at(job.profile.n_train) if job.profile.t_train else 1.0
            real.retime(name, own._replace(roll=t_roll, train=t_train * scale))
        if self.migration is None or real.mode != "rr" or real.gang or len(real.pins) == 1:
            return paces(real)
        return dict.fromkeys(real.pins, migrated_period(real, self.migration))


def migrated_period(group: Group, migration: Migration) -> float:
    """One meta-iteration of round robin if every rollout with somebody waiting behind it gives its node up early."""
    loads: dict[int, float] = {}
    longest = group.max_solo
    for name, nodes in group.pins.items():
        own = group.phases[name]
        alone = sum(nodes[0] in other for other in group.pins.values()) == 1
        held = own.roll if alone else migration.occupancy(own.roll)
        longest = longest if alone else max(longest, own.shared_solo + migration.move_s)
        loads[nodes[0]] = loads.get(nodes[0], 0.0) + held + own.switch_roll
    return max(longest, group.sum_train, *loads.values())
