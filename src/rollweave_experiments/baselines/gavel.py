"""Gavel+: every job gets the fractions of both pools that do the most work per dollar; phases are never interleaved.

With a share r of a rollout node and t of a train node, an iteration takes R/r + T/t and costs p r + q t dollars per
hour for that time, which is cheapest at t/r = sqrt(p T / (q R)). The larger share is one whole node, and the smaller
one is raised until the job's SLO is met. With this interpretation RollMux's three micro-benchmarks cost 1.14, 1.35 and
1.19 times Solo-D; figure 10 has 1.06, 1.33 and 1.12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from rollweave.mux.baselines import Plain
from rollweave.mux.decisions.plan import Plan, apply
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.state import ClusterState


class Shares(NamedTuple):
    """A job's nodes of each pool, as fractions."""

    rollout: float
    train: float


@dataclass(slots=True)
class Gavel(Plain):
    """Gives every job its cheapest shares when it arrives."""

    given: dict[str, Shares] = field(default_factory=dict)

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
        apply(state, plan, now, arriving)
        if arriving is not None and arriving.id in state.jobs:
            shares = self.given[arriving.id] = best_shares(arriving, state)
            own = arriving.profile
            arriving.pace = (
                own.t_roll * own.n_roll / shares.rollout + own.train_at(own.n_train) * own.n_train / shares.train
            )
        # Fractions of nodes are paid; the whole nodes of the plan are only names here.
        state.rollout.used = sum(self.given[job].rollout for job in state.jobs)
        state.train.used = sum(self.given[job].train for job in state.jobs)


def best_shares(job: MuxJob, prices: ClusterState) -> Shares:
    own = job.profile
    roll, train, allowed = own.t_roll, own.t_train, job.slo * job.solo_s - own.t_sync
    ratio = math.sqrt(prices.rollout.price * train / (prices.train.price * roll))
    if ratio <= 1:
        return Shares(own.n_roll, own.n_train * min(1.0, max(ratio, train / (allowed - roll))))
    return Shares(own.n_roll * min(1.0, max(1 / ratio, roll / (allowed - train))), own.n_train)
