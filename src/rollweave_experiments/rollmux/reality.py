"""How long phases really last, where that is not what was profiled: drift of response lengths, migration of long tails.

The scheduler goes on planning with profiles; the replay asks here for the pace that jobs really have. This is a model
of mean rates, for the replay without single phases: here the simulation has a rule of its own for tails, while the
daemon narrows permits (mux/permits.py).

Long-tail migration: when most responses are done, the last ones move together and the next job gets the other GPUs.
Only requests move, and the job's own training still waits for every response, so its iteration is not shorter; the time
for which its rollout keeps the node from the next job is. Planning never counts on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.slo import paces
from rollweave.mux.model.state import ClusterState
from rollweave.mux.simulation.replay import Replay


@dataclass(frozen=True, slots=True)
class Migration:
    threshold: float = 0.8
    """Share of responses that are done when the rest is moved."""
    at_limit: float = 0.03
    """Share of responses cut off at the maximum length; with `spread` it fixes the law of lengths."""
    spread: float = 0.8
    """Standard deviation of the logarithm of a response's length."""
    gpus: int = 8
    tail_gpus: int = 2
    move_s: float = 3.0
    """Computing the kept tokens of the moved requests again (RollPacker measures less than 3 s for it)."""

    @property
    def busy_share(self) -> float:
        """Of a rollout, the share until the threshold: a request's time is its length, lengths are lognormal."""
        law = NormalDist()
        return min(1.0, math.exp(self.spread * (law.inv_cdf(self.threshold) - law.inv_cdf(1 - self.at_limit))))

    def occupancy(self, roll_s: float) -> float:
        """Seconds of the node that a rollout really takes from the next one: the tail holds some GPUs only."""
        until = self.busy_share * roll_s
        tail = (roll_s - until) * self.tail_gpus / self.gpus
        return min(roll_s, until + tail + self.move_s)


DRIFT_OVER = 90
"""Iterations over which a profile changes; flat afterwards (RollMux's drift figure shows 90 steps)."""


class Drift(NamedTuple):
    """Phases last `begin` times their profile at first, and linearly come to last `end` times as long."""

    begin: float = 1.0
    end: float = 1.0

    def factor(self, done: float) -> float:
        return self.begin + (self.end - self.begin) * min(1.0, done / DRIFT_OVER)


@dataclass(slots=True)
class Reality:
    migration: Migration | None = None
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    profiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What each job was submitted with: the scheduler may have corrected its own copy since."""
    every_s: float = math.inf
    """How often jobs report their times."""
    known: dict[int, tuple[object, dict[str, float]]] = field(default_factory=dict)
    """Paces by group, and what they were computed from."""

    def settle(self, state: ClusterState, now: float) -> None:
        """Give every job the pace it really has from now on."""
        for group in state.groups.values():
            for name in group.jobs:
                state.jobs[name].settle(now)
            for name, pace in self._paces(group, state, now).items():
                if name in state.jobs:
                    state.jobs[name].pace = pace

    def measured(self, job: MuxJob, now: float) -> tuple[float, float]:
        """Rollout and train seconds of the iteration that ends now."""
        t_roll, t_train = self.profiles.setdefault(job.id, (job.profile.t_roll, job.profile.t_train))
        factor = self.drifts.get(job.id, Drift()).factor(job.done_at(now))
        return t_roll * factor, t_train * factor

    def extra_s(self, job: MuxJob) -> float:
        """How much its work would take alone beyond what was profiled: what a job does more of is not lateness."""
        drift = self.drifts.get(job.id)
        if drift is None:
            return 0.0
        t_roll, t_train = self.profiles.get(job.id, (job.profile.t_roll, job.profile.t_train))
        grown = sum(max(0.0, drift.factor(number) - 1) for number in range(int(job.n_iters)))
        return grown * (t_roll + t_train)

    def _paces(self, group: CoGroup, state: ClusterState, now: float) -> dict[str, float]:
        if self.drifts:
            return self._computed(self._drifted(group, state, now))
        made_of = (group.mode, tuple(group.pins.items()), tuple(group.phases.values()), group.order)
        before, found = self.known.get(group.id, (None, {}))
        if before != made_of:
            found = self._computed(group)
            self.known[group.id] = (made_of, found)
        return found

    def _drifted(self, group: CoGroup, state: ClusterState, now: float) -> CoGroup:
        real = group.copy()
        for name in group.jobs:
            job = state.jobs[name]
            t_roll, t_train = self.measured(job, now)
            own = group.phases[name]
            scale = own.train / job.profile.train_at(job.profile.n_train) if job.profile.t_train else 1.0
            real.retime(name, own._replace(roll=t_roll, train=t_train * scale))
        return real

    def _computed(self, group: CoGroup) -> dict[str, float]:
        if self.migration is None or group.mode != "rr" or group.gang or len(group.pins) == 1:
            return paces(group, group.mode)
        return dict.fromkeys(group.pins, migrated_period(group, self.migration))


def migrated_period(group: CoGroup, migration: Migration) -> float:
    """One lap of round robin if every rollout behind which another job waits gives its node up early."""
    loads: dict[int, float] = {}
    longest = group.max_solo
    for name, nodes in group.pins.items():
        own = group.phases[name]
        alone = sum(nodes[0] in other for other in group.pins.values()) == 1
        held = own.roll if alone else migration.occupancy(own.roll)
        longest = longest if alone else max(longest, own.shared_solo + migration.move_s)
        loads[nodes[0]] = loads.get(nodes[0], 0.0) + held + own.switch_roll
    return max(longest, group.sum_train, *loads.values())


@dataclass(slots=True)
class RealReplay(Replay):
    """A replay in which phases last as they do in reality; the scheduler hears what was measured now and then."""

    reality: Reality = field(default_factory=Reality)
    first_solo: dict[str, float] = field(default_factory=dict)

    def _step(self) -> None:
        Replay._step(self)
        self.reality.settle(self.state, self.outcome.ledger.now)

    def _arrive(self, job: MuxJob, now: float) -> None:
        self.first_solo.setdefault(job.id, job.solo_s)
        Replay._arrive(self, job, now)

    def _deadline(self, job: MuxJob) -> float:
        if not self.reality.drifts:
            return job.deadline
        # Judged against the work as it became, from the first placement on: resubmissions do not start a new clock.
        alone = job.n_iters * self.first_solo[job.id] + self.reality.extra_s(job)
        return self.placed[job.id] + job.profile.cold_s + job.slo * alone

    def _start_ticks(self) -> None:
        Replay._start_ticks(self)
        if self.reality.every_s < math.inf:
            self._at(self.reality.every_s, self._observe, counts=False)

    def _observe(self, now: float) -> None:
        for job in list(self.state.jobs.values()):
            if job.id in self.state.jobs and job.resumes_at <= now:
                self._observe_one(job, now)
        self._at(now + self.reality.every_s, self._observe, counts=False)

    def _observe_one(self, job: MuxJob, now: float) -> None:
        t_roll, t_train = self.reality.measured(job, now)
        profile = job.profile.with_times(t_roll, t_train)
        kept = replace(job, done=job.done_at(now), pace=0.0, profile=profile, solo_s=profile.solo_s)
        plan = self._decide(
            "observe", job.id, now, lambda: self.decider.observe(self.state, job.id, t_roll, t_train, now)
        )
        if any(step.kind == "resubmit" for step in plan.steps):
            self.outcome.moves += 1
            self.outcome.paused_s += job.profile.move_s
            self._at(now + job.profile.move_s, partial(self._arrive, kept))
