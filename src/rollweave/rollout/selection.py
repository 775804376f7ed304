"""Which groups a train step consumes, and which it may leave behind. Pure: numbers in, a choice out.

A step takes the oldest complete groups. What it leaves behind must still be consumable in time by later steps. Where
it is not, there are three cases:

    surplus   more groups were started than can ever be consumed (redundancy, over-issue): the latest to be
              admitted of those still running are given up, because they are likely to have done the least
    stale     a running group would be too old by the time its turn comes: the policy says whether the step waits
              for it (`wait`), or gives it up (`requeue`, `drop`)
    nobody    `areal` looks at age only at the start: nothing is ever given up, and the bound may be exceeded
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor

from rollweave.rollout.staleness import StalenessBound


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group in line."""

    id: int
    version: int
    """What its staleness is counted from."""
    complete: bool
    expendable: bool = False
    """It may be given up for its age if it does not finish in time."""


@dataclass(slots=True)
class Selection:
    consumed: list[int]
    surplus: list[int] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)


def select(
    line: Sequence[Candidate], step: int, bound: StalenessBound, survivors: float = 1.0, start_only: bool = False
) -> Selection | None:
    """The choice for this step, or None while the step has to wait.

    `survivors`: the share of running groups that is expected to pass the filter and to want a place in a batch.
    """
    size = bound.groups_per_step
    line = sorted(line, key=lambda group: (group.version, group.id))
    complete = [group.id for group in line if group.complete]
    if len(complete) < size:
        return None
    selection = Selection(complete[:size])
    if start_only:
        return selection
    chosen = set(selection.consumed)
    left = [group for group in line if group.id not in chosen]
    given_up = _too_many(left, 0, step + 1, bound, survivors)
    # Were everybody complete, the oldest would be consumed now: what is too many even then is surplus.
    surplus = len(_too_many(line, size, step + 1, bound, survivors))
    late = given_up[surplus:]
    if not all(group.expendable or group.complete for group in late):
        return None
    selection.surplus = [group.id for group in given_up[:surplus]]
    selection.stale = [group.id for group in late]
    return selection


def left_over(complete: Sequence[Candidate], step: int, bound: StalenessBound) -> list[int]:
    """Complete groups that find no place in this step or a later one: more survived the filter than was expected."""
    line = sorted(complete, key=lambda group: (group.version, group.id))
    return [group.id for group in _too_many(line, 0, step, bound, survivors=1.0)]


def _too_many(
    line: Sequence[Candidate], now: int, next_step: int, bound: StalenessBound, survivors: float
) -> list[Candidate]:
    """Whom to leave out of the line so that all others find a place: `now` of them at once, the rest in time."""
    out: list[Candidate] = []
    reached: list[Candidate] = []  # of this version or older, and still in
    for place, group in enumerate(line):
        reached.append(group)
        if place + 1 < len(line) and line[place + 1].version == group.version:
            continue
        excess = _excess(reached, now + bound.capacity(group.version, next_step), survivors)
        if excess > 0:
            reached.sort(key=_worth)
            out += reached[:excess]
            reached = reached[excess:]
    return out


def _excess(groups: Sequence[Candidate], places: int, survivors: float) -> int:
    complete = sum(group.complete for group in groups)
    free = places - complete
    # With no place free, nobody who still runs can get one, however unlikely he is to survive.
    return len(groups) - complete - (floor(free / survivors + 1e-9) if free > 0 else free)


def _worth(group: Candidate) -> tuple[bool, bool, int]:
    """Those with the least to lose first: running, expendable, latest admitted."""
    return group.complete, not group.expendable, -group.id
