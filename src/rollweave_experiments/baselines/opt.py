"""Two baselines that partition the present jobs into groups exactly, by an integer program that HiGHS solves.

`Opt` computes the cheapest partition at every event, and regrouping is free and instant. It is exact under round robin
but knows only the present, so over time it is a strong comparison and not a lower bound; `lower_bound` is one.
`Regroup` uses Algorithm 1 at arrivals and the exact partition every hour, and a job that changes group pays for the
move (197 to 419 s). RollMux uses it as the oracle of its drift study.

`Cells` holds all feasible groups: all subsets of the present jobs that keep every SLO under round robin. For jobs of
one node per pool a subset is feasible if its longest job and its sum of train times both fit the smallest tolerance.
It costs one train node and as many rollout nodes as its rollouts need when packed into that tolerance. A subset of a
feasible subset is feasible, so an arrival only has to extend the known ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rollweave.errors import ConfigError
from rollweave.mux.baselines import Plain, own_group
from rollweave.mux.decisions.plan import Plan, PlanStep, apply
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.group import CoGroup, Phases, phases_at
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import ROLLMUX
from rollweave.mux.model.slo import paces
from rollweave.mux.model.state import ClusterState

SLACK = 1e-9
MOST_CELLS = 400_000


class CellJob(NamedTuple):
    """A job with its phases and the longest iteration that it tolerates."""

    phases: Phases
    limit: float


class Cell(NamedTuple):
    """A feasible group."""

    jobs: frozenset[str]
    longest: float
    trains: float
    limit: float
    bins: int
    """The number of rollout nodes."""


@dataclass(slots=True)
class Cells:
    """All feasible groups of the present jobs."""

    max_group: int
    members: dict[str, CellJob] = field(default_factory=dict)
    known: dict[frozenset[str], Cell] = field(default_factory=dict)

    def add(self, job: MuxJob) -> None:
        if job.profile.n_roll > 1 or job.profile.n_train > 1:
            raise ConfigError(
                f"job {job.id} needs several nodes per pool, but Opt and regroup support only jobs of one node"
            )
        self.members[job.id] = CellJob(phases_at(job.profile, 1), job.slo * job.solo_s * (1 + SLACK))
        fresh = [self._alone(job.id)]
        fresh += filter(None, (self._with(cell, job.id) for cell in self.known.values()))
        self.known.update((cell.jobs, cell) for cell in fresh)
        if len(self.known) > MOST_CELLS:
            raise ConfigError(
                f"{len(self.members)} jobs at a time are too many groups to try; compare with --bound instead"
            )

    def remove(self, job: str) -> None:
        del self.members[job]
        self.known = {jobs: cell for jobs, cell in self.known.items() if job not in jobs}

    def keep_only(self, jobs: Iterable[MuxJob]) -> None:
        """Remove jobs that have left, and add jobs that have arrived."""
        wanted = {job.id: job for job in jobs}
        for gone in self.members.keys() - wanted.keys():
            self.remove(gone)
        for name in sorted(wanted.keys() - self.members.keys()):
            self.add(wanted[name])

    def _alone(self, job: str) -> Cell:
        own, limit = self.members[job]
        return Cell(frozenset((job,)), own.shared_solo, own.shared_train, limit, 1)

    def _with(self, cell: Cell, job: str) -> Cell | None:
        if len(cell.jobs) >= self.max_group:
            return None
        own, own_limit = self.members[job]
        longest, trains = max(cell.longest, own.shared_solo), cell.trains + own.shared_train
        limit = min(cell.limit, own_limit)
        if longest > limit or trains > limit:
            return None
        jobs = cell.jobs | {job}
        rolls = [self.members[name].phases.shared_roll for name in jobs]
        return Cell(jobs, longest, trains, limit, len(pack(rolls, limit)))

    def covering(self) -> list[Cell]:
        """The cells that are enough for the choice: without cells that could take one more job at the same price."""
        larger = {
            (cell.jobs - {job}, cell.bins) for cell in self.known.values() for job in cell.jobs if len(cell.jobs) > 1
        }
        return [cell for cell in self.known.values() if (cell.jobs, cell.bins) not in larger]


def pack(rolls: Sequence[float], capacity: float) -> list[list[int]]:
    """Pack a few items into the fewest bins, exactly. The result has the indices of the items in each bin."""
    order = sorted(range(len(rolls)), key=lambda item: (-rolls[item], item))
    best = [[item] for item in order]
    fewest = math.ceil(sum(rolls) / capacity - SLACK)

    def place(at: int, bins: list[list[int]], loads: list[float]) -> None:
        nonlocal best
        if len(bins) >= len(best):
            return
        if at == len(order):
            best = [list(items) for items in bins]
            return
        item = order[at]
        for number in range(len(bins)):
            if loads[number] + rolls[item] <= capacity:
                bins[number].append(item)
                loads[number] += rolls[item]
                place(at + 1, bins, loads)
                loads[number] -= rolls[item]
                bins[number].pop()
                if len(best) <= fewest:
                    return
        place(at + 1, [*bins, [item]], [*loads, rolls[item]])

    place(0, [], [])
    return best


@dataclass(slots=True)
class Opt(Plain):
    """Makes the cheapest partition after every event."""

    cells: Cells = field(default_factory=lambda: Cells(ROLLMUX.max_group))

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        return own_group(state, job)

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
        apply(state, plan, now, arriving)
        self.cells.keep_only(state.jobs.values())
        rebuild(state, partition(self.cells, state), now)


def partition(cells: Cells, state: ClusterState) -> list[frozenset[str]]:
    """The cheapest cover of all jobs by cells; if two cells overlap, the first keeps the job."""
    if not cells.members:
        return []
    columns = cells.covering()
    chosen = _solve(columns, sorted(cells.members), state)
    taken: set[str] = set()
    parts = []
    for cell in sorted(chosen, key=lambda cell: sorted(cell.jobs)):
        parts.append(cell.jobs - taken)
        taken |= cell.jobs
    return [part for part in parts if part]


def _solve(columns: list[Cell], jobs: list[str], state: ClusterState) -> list[Cell]:
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    row = {job: number for number, job in enumerate(jobs)}
    rows = [row[job] for cell in columns for job in cell.jobs]
    at = [number for number, cell in enumerate(columns) for _ in cell.jobs]
    cover = csr_array((np.ones(len(rows)), (rows, at)), shape=(len(jobs), len(columns)))
    cost = np.array([state.train.price + state.rollout.price * cell.bins for cell in columns])
    answer = milp(
        cost,
        constraints=LinearConstraint(cover, lb=1.0),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(columns)),
        options={"mip_rel_gap": 0.0},
    )
    assert answer.x is not None, f"the cover of {len(jobs)} jobs has no solution: {answer.message}"
    return [cell for cell, share in zip(columns, answer.x, strict=True) if share > 0.5]


def rebuild(state: ClusterState, parts: list[frozenset[str]], now: float) -> None:
    """Make exactly these groups, with newly assigned nodes."""
    for job in state.jobs.values():
        job.settle(now)
    if {frozenset(group.jobs) for group in state.groups.values()} == set(parts):
        return
    state.groups.clear()
    for pool in (state.rollout, state.train):
        pool.used, pool.next, pool.freed = 0, 0, []
    for part in parts:
        _build(state, part)


def _build(state: ClusterState, part: frozenset[str]) -> None:
    jobs = [job for job in state.jobs.values() if job.id in part]  # in arrival order
    limit = min(job.slo * job.solo_s for job in jobs) * (1 + 1e-9)
    train = state.train.peek(1)
    state.train.take(train)
    group = CoGroup(state.next_group, train)
    phases = [phases_at(job.profile, 1) for job in jobs]
    for items in pack([own.shared_roll for own in phases], limit):
        nodes = state.rollout.peek(1)
        state.rollout.take(nodes)
        for item in items:
            group.add(jobs[item].id, phases[item], nodes)
    state.groups[group.id] = group
    state.next_group += 1
    for name, pace in paces(group, group.mode).items():
        state.jobs[name].pace = pace
        state.home[name] = group.id


@dataclass(slots=True)
class Regroup(Plain):
    """Makes the cheapest partition every hour."""

    every_s: float = 3600.0
    placing: Scheduler = field(default_factory=Scheduler)
    parts: list[frozenset[str]] = field(default_factory=list)

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        return self.placing.arrive(state, job, now)

    def tick(self, state: ClusterState, now: float) -> Plan:
        cells = Cells(ROLLMUX.max_group)
        cells.keep_only(state.jobs.values())
        parts = partition(cells, state)
        if price(parts, cells, state) >= state.cost() - 1e-9:
            return Plan()
        self.parts = parts
        movers = jobs_that_move(parts, state.home)
        return Plan(tuple(PlanStep("move", job, state.home[job], "hourly regroup") for job in movers))

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
        if not self.parts:
            apply(state, plan, now, arriving)
            return
        rebuild(state, self.parts, now)
        for step in plan.steps:
            state.jobs[step.job].pause(now)
        self.parts = []


def price(parts: list[frozenset[str]], cells: Cells, state: ClusterState) -> float:
    return sum(state.train.price + state.rollout.price * cells.known[part].bins for part in parts)


def jobs_that_move(parts: list[frozenset[str]], home: dict[str, int]) -> list[str]:
    """The jobs that change group. Each new group continues the old group with which it shares the most jobs."""
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
