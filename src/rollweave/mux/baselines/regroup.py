"""Hourly regroup: Algorithm 1 at arrivals, every hour the exact partition; a job that changes group pays for the move.

RollMux uses it as the oracle of its drift study; solving is free, moving is not (197 to 419 s a job).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rollweave.mux.baselines.cells import Cells
from rollweave.mux.baselines.opt import partition, rebuild
from rollweave.mux.baselines.plain import Plain
from rollweave.mux.decisions.apply import apply
from rollweave.mux.decisions.plan import Plan, Step
from rollweave.mux.decisions.policy import ROLLMUX
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.job import Job
from rollweave.mux.model.state import ClusterState


@dataclass(slots=True)
class Regroup(Plain):
    every_s: float = 3600.0
    placing: Scheduler = field(default_factory=Scheduler)
    parts: list[frozenset[str]] = field(default_factory=list)

    def arrive(self, state: ClusterState, job: Job, now: float) -> Plan:
        return self.placing.arrive(state, job, now)

    def tick(self, state: ClusterState, now: float) -> Plan:
        cells = Cells(ROLLMUX.max_group)
        cells.keep_only(state.jobs.values())
        parts = partition(cells, state)
        if price(parts, cells, state) >= state.cost() - 1e-9:
            return Plan()
        self.parts = parts
        movers = moved(parts, state.home)
        return Plan(tuple(Step("move", job, state.home[job], "hourly regroup") for job in movers))

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: Job | None = None) -> None:
        if not self.parts:
            apply(state, plan, now, arriving)
            return
        rebuild(state, self.parts, now)
        for step in plan.steps:
            state.jobs[step.job].pause(now)
        self.parts = []


def price(parts: list[frozenset[str]], cells: Cells, state: ClusterState) -> float:
    return sum(state.train.price + state.rollout.price * cells.known[part].bins for part in parts)


def moved(parts: list[frozenset[str]], home: dict[str, int]) -> list[str]:
    """Who leaves their group: each new group is the continuation of the old one it shares most jobs with."""
    claims = [
        (-count, number, old)
        for number, part in enumerate(parts)
        for old, count in Counter(home[job] for job in part).items()
    ]
    continued: dict[int, int] = {}
    for _, number, old in sorted(claims):
        if number not in continued and old not in continued.values():
            continued[number] = old
    movers = [job for number, part in enumerate(parts) for job in part if home[job] != continued.get(number)]
    return sorted(movers)
