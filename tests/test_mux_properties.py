"""Thousands of random arrivals, departures, failures and moves: what must never happen does not."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from rollweave.mux.decisions.invariants import check_state
from rollweave.mux.decisions.plan import Plan
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.job import JobProfile, MuxJob
from rollweave.mux.model.policy import DEFAULT, PER_ITERATION, ROLLMUX, MuxPolicy
from rollweave.mux.model.state import ClusterState, rollout_pool, train_pool
from rollweave.seeds import generator


@dataclass
class Storm:
    """Random events against one policy; every plan is applied (and so checked), every state is looked at."""

    policy: MuxPolicy
    draw: random.Random
    state: ClusterState = field(default_factory=lambda: ClusterState(rollout_pool(1500), train_pool(1500)))
    now: float = 0.0
    events: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    late: list[str] = field(default_factory=list)
    again: list[tuple[float, MuxJob]] = field(default_factory=list)

    def run(self, events: int) -> None:
        while self.events < events:
            self._one()
            self.events += 1
            check_state(self.state, self.policy)

    def _one(self) -> None:
        leaver = min(self.state.jobs.values(), key=lambda job: job.finish_at(), default=None)
        pause = self.draw.expovariate(1 / 3000)
        if leaver is not None and leaver.finish_at() <= self.now + pause:
            self.now = leaver.finish_at()
            if self.now > leaver.deadline * (1 + 1e-9):
                self.late.append(leaver.id)
            self._do(self.scheduler.depart(self.state, leaver.id, self.now))
            return
        self.now += pause
        if self.state.jobs and self.draw.random() < 0.1:
            self._fail()
        elif self.again and self.again[0][0] <= self.now:
            self._arrive(heapq.heappop(self.again)[1])
        elif self.state.jobs and self.draw.random() < 0.2:
            job = self.draw.choice(sorted(self.state.jobs))
            times = self.state.jobs[job].profile
            self._do(self.scheduler.observe(self.state, job, times.t_roll, times.t_train, self.now))
        else:
            self._arrive(self._job())

    @property
    def scheduler(self) -> Scheduler:
        return Scheduler(self.policy)

    def _fail(self) -> None:
        job = self.state.jobs[self.draw.choice(sorted(self.state.jobs))]
        kept = MuxJob(f"{job.id}'", job.profile, job.slo, job.n_iters, done=float(int(job.done_at(self.now))))
        self._do(self.scheduler.depart(self.state, job.id, self.now, "failed"))
        if kept.done < kept.n_iters:
            heapq.heappush(self.again, (self.now + 2000, kept))

    def _arrive(self, job: MuxJob) -> None:
        self._do(self.scheduler.arrive(self.state, job, self.now), job)

    def _do(self, plan: Plan, arriving: MuxJob | None = None) -> None:
        self.steps.update(step.kind for step in plan.steps)
        self.scheduler.apply(self.state, plan, self.now, arriving)

    def _job(self) -> MuxJob:
        draw, scale = self.draw, self.draw.choice((0.3, 1.0, 3.0))
        profile = JobProfile(
            scale * draw.uniform(50, 300),
            scale * draw.uniform(15, 120),
            n_roll=draw.choice((1, 1, 1, 1, 2)),
            n_train=draw.choice((1, 1, 1, 2)),
            mem_roll=draw.choice((100, 300, 500)),
            mem_train=draw.choice((100, 300, 500)),
            switch_roll=draw.uniform(0, 2),
            switch_train=draw.uniform(0, 5),
            cold_roll=40,
            move_s=200,
        )
        return MuxJob(f"{self.events}", profile, draw.uniform(1, 2), draw.randint(3, 120))


STORMS = [
    pytest.param(ROLLMUX, 5000, id="rollmux"),
    pytest.param(DEFAULT, 1500, id="default"),
    pytest.param(PER_ITERATION, 2500, id="per-iteration", marks=pytest.mark.slow),
    pytest.param(replace(DEFAULT, integrated_cost=True), 1000, id="integrated", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("policy", "events"), STORMS)
def test_ten_thousand_events_break_no_invariant_and_no_promise(policy: MuxPolicy, events: int) -> None:
    """`apply` checks every plan against the invariants and raises; memory and pools are looked at after every event."""
    storm = Storm(policy, generator(5, "storm"))
    storm.run(events)
    assert storm.late == []
    assert min(storm.steps[kind] for kind in ("open", "place", "leave")) > events / 50
    assert (storm.steps["move"] > 0) == policy.consolidation
    assert (storm.steps["arrange"] > 0) == (policy.fifo != "off" or policy.order_search)
