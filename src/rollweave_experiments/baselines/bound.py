"""A lower bound on the cost of a trace under any policy that keeps every SLO: a linear program over hours.

The program knows the whole trace, moves jobs freely and divides nodes. It respects only this: a job runs between its
arrival and its deadline, and never faster than alone; a node does one second of work per second; a group of at most
`max_group` jobs has a train node and a rollout node. It ignores the order of phases, whole nodes and switching, so a
real schedule can only cost more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import ROLLMUX
from rollweave.mux.model.state import ClusterState

Entry = tuple[int, int, float]
"""Row, column, coefficient."""


def lower_bound(
    arrivals: Sequence[tuple[float, MuxJob]], max_group: int = ROLLMUX.max_group, slot_s: float = 3600.0
) -> float:
    """The bound in dollars."""
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    shares = [share for at, job in arrivals for share in _shares(at, job, slot_s)]
    slots = 1 + max(slot for slot, _, _ in shares)
    first = 2 * slots  # columns: train nodes per slot, rollout nodes per slot, then the shares
    usage = list(_usage(shares, slots, first, max_group, all(job.profile.n_train == 1 for _, job in arrivals)))
    work, demand, column = [], [], first
    for number, (at, job) in enumerate(arrivals):
        for _ in _shares(at, job, slot_s):
            work.append((number, column, 1.0))
            column += 1
        demand.append((job.n_iters - job.done) * job.solo_s / slot_s)

    def matrix(entries: list[Entry], rows: int) -> csr_array:
        row, col, value = zip(*entries, strict=True)
        return csr_array((value, (row, col)), shape=(rows, column))

    prices = ClusterState()
    dollars = np.zeros(column)
    dollars[:slots], dollars[slots:first] = prices.train.price * slot_s / 3600, prices.rollout.price * slot_s / 3600
    answer = linprog(
        dollars,
        A_ub=matrix(usage, 5 * slots),
        b_ub=np.zeros(5 * slots),
        A_eq=matrix(work, len(arrivals)),
        b_eq=np.array(demand),
        bounds=[(0, None)] * first + [(0, most) for _, most, _ in shares],
        method="highs",
    )
    assert answer.success, answer.message
    return float(answer.fun)


def _shares(at: float, job: MuxJob, slot_s: float) -> list[tuple[int, float, MuxJob]]:
    """(slot, the largest share of it in which the job can run, job), for slots from arrival to deadline."""
    start = at + job.profile.cold_s
    end = start + job.slo * (job.n_iters - job.done) * job.solo_s
    found = []
    for slot in range(int(start // slot_s), math.ceil(end / slot_s)):
        overlap = min(end, (slot + 1) * slot_s) - max(start, slot * slot_s)
        found.append((slot, max(0.0, overlap) / slot_s, job))
    return found


def _usage(
    shares: Sequence[tuple[int, float, MuxJob]], slots: int, first: int, max_group: int, narrow: bool
) -> list[Entry]:
    """The rows of `... <= 0`: work and places in groups in each pool, and pairs (one train node per group)."""
    entries: list[Entry] = []
    for slot in range(slots):
        train, rollout = slot, slots + slot
        rows = [(0, train), (1, rollout), (2, train), (3, rollout)] + [(4, rollout)] * narrow
        entries += [(kind * slots + slot, column, -1.0) for kind, column in rows]
        if narrow:
            entries.append((4 * slots + slot, train, 1.0))
    for number, (slot, _, job) in enumerate(shares):
        own = job.profile
        weights = (
            (own.t_train + own.t_sync) * own.n_train / own.solo_s,
            own.t_roll * own.n_roll / own.solo_s,
            1 / max_group,
            1 / max_group,
        )
        entries += [(kind * slots + slot, first + number, weight) for kind, weight in enumerate(weights)]
    return entries
