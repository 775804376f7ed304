"""Opt: at every event the cheapest partition of the present jobs into groups, with free and instant regrouping.

Exact under round robin, by an integer program over all feasible groups (`cells.py`), solved by HiGHS. It knows the
present only, so over time it is a strong comparator and no lower bound; `bound.py` is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollweave.mux.baselines.cells import Cell, Cells, pack
from rollweave.mux.baselines.plain import Plain, own_group
from rollweave.mux.decisions.apply import apply
from rollweave.mux.decisions.plan import Plan
from rollweave.mux.decisions.policy import ROLLMUX
from rollweave.mux.model.group import Group, phases_at
from rollweave.mux.model.job import Job
from rollweave.mux.model.slo import paces
from rollweave.mux.model.state import ClusterState


@dataclass(slots=True)
class Opt(Plain):
    cells: Cells = field(default_factory=lambda: Cells(ROLLMUX.max_group))

    def arrive(self, state: ClusterState, job: Job, now: float) -> Plan:
        return own_group(state, job)

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: Job | None = None) -> None:
        apply(state, plan, now, arriving)
        self.cells.keep_only(state.jobs.values())
        rebuild(state, partition(self.cells, state), now)


def partition(cells: Cells, state: ClusterState) -> list[frozenset[str]]:
    """The cheapest cover of all jobs by cells; where two overlap the first keeps the job."""
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
    """Make the groups exactly these; nodes are given out afresh."""
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
    group = Group(state.next_group, train)
    phases = [phases_at(job.profile, 1) for job in jobs]
    for items in pack([own.shared_roll for own in phases], limit):
        nodes = state.rollout.peek(1)
        state.rollout.take(nodes)
        for item in items:
            group.add(jobs[item].id, phases[item], nodes)
    state.groups[group.id] = group
    state.next_group += 1
    for name, pace in paces(group).items():
        state.jobs[name].pace = pace
        state.home[name] = group.id
