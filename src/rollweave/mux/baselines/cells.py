"""Every group that could be: all subsets of the present jobs that keep everybody's SLO under round robin.

For jobs of one node per pool a subset is feasible if its longest member and its summed train time both fit the
tightest tolerance, and it costs one train node and as many rollout nodes as its rollouts need when packed into that
tolerance. A subset of a feasible one is feasible, so an arrival only has to extend what is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rollweave.errors import ConfigError
from rollweave.mux.model.group import Phases, phases_at
from rollweave.mux.model.job import Job

SLACK = 1e-9
MOST_CELLS = 400_000


class Member(NamedTuple):
    phases: Phases
    limit: float


class Cell(NamedTuple):
    jobs: frozenset[str]
    longest: float
    trains: float
    limit: float
    bins: int
    """Rollout nodes."""


@dataclass(slots=True)
class Cells:
    max_group: int
    members: dict[str, Member] = field(default_factory=dict)
    known: dict[frozenset[str], Cell] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        if job.profile.n_roll > 1 or job.profile.n_train > 1:
            raise ConfigError(f"job {job.id} wants several nodes per pool: Opt and regroup know jobs of one node only")
        self.members[job.id] = Member(phases_at(job.profile, 1), job.slo * job.solo_s * (1 + SLACK))
        fresh = [self._alone(job.id)]
        fresh += filter(None, (self._with(cell, job.id) for cell in self.known.values()))
        self.known.update((cell.jobs, cell) for cell in fresh)
        if len(self.known) > MOST_CELLS:
            raise ConfigError(
                f"{len(self.members)} jobs at a time: too many groups to try; compare with --bound instead"
            )

    def remove(self, job: str) -> None:
        del self.members[job]
        self.known = {jobs: cell for jobs, cell in self.known.items() if job not in jobs}

    def keep_only(self, jobs: Iterable[Job]) -> None:
        """Follow whoever is here now."""
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
        """Those that are enough to choose from: none that could take one more job at the same price."""
        larger = {
            (cell.jobs - {job}, cell.bins) for cell in self.known.values() for job in cell.jobs if len(cell.jobs) > 1
        }
        return [cell for cell in self.known.values() if (cell.jobs, cell.bins) not in larger]


def pack(rolls: Sequence[float], capacity: float) -> list[list[int]]:
    """Fewest bins for at most a handful of items: items by index, exact."""
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
