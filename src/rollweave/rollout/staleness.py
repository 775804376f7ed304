"""How far rollout may run ahead of training, and which groups a train step consumes.

Version v means v completed train steps. The staleness of a group at step n is n minus the version of its oldest
sampled token. With N groups to a batch and alpha = k + f, at step n every group has staleness k at most, but for a
share f of the batch that may have k + 1.

Admitting a group commits it to a place in line: with p groups ahead of it, it is consumed by step
`next_step + p // N`. It is admitted only if even then it is not too old (`room`), so nothing that was admitted has to
be thrown away for its age as long as steps wait for every group.

A step takes the oldest complete groups. What it leaves behind must still be consumable in time by later steps. Where
it is not, there are three cases:

    surplus   more groups were started than can ever be consumed (redundancy, over-issue): the latest to be
              admitted of those still running are given up, because they are likely to have done the least
    stale     a running group would be too old when a step could take it: the policy says whether the step waits
              for it (`wait`), or gives it up (`requeue`, `drop`)
    neither   `areal` looks at age only at the start: nothing is ever given up, and the bound may be exceeded

`StalenessBound` and `select` are pure: numbers in, a choice out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Literal

from rollweave.trajectory import Group


@dataclass(frozen=True, slots=True)
class StalenessBound:
    alpha: float
    groups_per_step: int
    whole: int = field(init=False)
    """Versions every group may be behind."""
    late: int = field(init=False)
    """Groups of a batch that may be one version more behind."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", floor(self.alpha))
        object.__setattr__(self, "late", floor((self.alpha - self.whole) * self.groups_per_step + 1e-9))

    def room(self, next_step: int, engine_version: int) -> int:
        """How many groups may be in line, running or buffered, so that each can be consumed in time."""
        return self._served(self.whole - (next_step - engine_version) + 1)

    def capacity(self, version: int, next_step: int) -> int:
        """How many groups of at most this version can be consumed in time from `next_step` on."""
        return self._served(version + self.whole - next_step + 1)

    def _served(self, steps: int) -> int:
        return steps * self.groups_per_step + self.late if steps >= 0 else 0

    def keeps(self, staleness: Iterable[int]) -> bool:
        """Whether a batch whose groups have this staleness is within the bound."""
        over = [age - self.whole for age in staleness if age > self.whole]
        return len(over) <= self.late and all(excess == 1 for excess in over)


@dataclass(frozen=True, slots=True)
class GroupInLine:
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
    line: Sequence[GroupInLine], step: int, bound: StalenessBound, survivors: float = 1.0, start_only: bool = False
) -> Selection | None:
    """The choice for this step, or None while the step has to wait.

    `survivors`: the share of running groups that is expected to pass the filter and to want a place in a batch.
    """
    size = bound.groups_per_step
    line = sorted(line, key=_age)
    complete = [group.id for group in line if group.complete]
    if len(complete) < size:
        return None
    selection = Selection(complete[:size])
    if start_only:
        return selection
    chosen = set(selection.consumed)
    left = [group for group in line if group.id not in chosen]
    given_up = _too_many(left, 0, step + 1, bound, survivors)
    # If all were complete, the oldest would be consumed now: what is too many even then is surplus.
    surplus = len(_too_many(line, size, step + 1, bound, survivors))
    late = given_up[surplus:]
    if not all(group.expendable or group.complete for group in late):
        return None
    selection.surplus = [group.id for group in given_up[:surplus]]
    selection.stale = [group.id for group in late]
    return selection


def _age(group: GroupInLine) -> tuple[int, int]:
    return group.version, group.id


def _too_many(
    line: Sequence[GroupInLine], now: int, next_step: int, bound: StalenessBound, survivors: float
) -> list[GroupInLine]:
    """Which to leave out of the line so that all others find a place: `now` of them at once, the rest in time."""
    out: list[GroupInLine] = []
    reached: list[GroupInLine] = []  # of this version or older, and still in
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


def _excess(groups: Sequence[GroupInLine], places: int, survivors: float) -> int:
    complete = sum(group.complete for group in groups)
    free = places - complete
    # With no place free, no running group can get one, however unlikely it is to survive.
    return len(groups) - complete - (floor(free / survivors + 1e-9) if free > 0 else free)


def _worth(group: GroupInLine) -> tuple[bool, bool, int]:
    """Those with the least to lose first: running, expendable, latest admitted."""
    return group.complete, not group.expendable, -group.id


class SampleBuffer:
    """Complete groups that wait for the train step that consumes them."""

    def __init__(self, bound: StalenessBound) -> None:
        self.bound = bound
        self.groups: dict[int, Group] = {}
        self._versions: dict[int, int] = {}
        """What each group's staleness is counted from: a complete group does not change any more."""

    def __len__(self) -> int:
        return len(self.groups)

    def put(self, group: Group) -> None:
        self.groups[group.id] = group
        self._versions[group.id] = group.oldest_version

    def take(self, id: int) -> Group:
        del self._versions[id]
        return self.groups.pop(id)

    def has_batch_in_order(self, running: Iterable[GroupInLine]) -> bool:
        """Whether the groups that are next by age are complete, as many as a step consumes.

        Where every group is trained in the end, steps consume them in this order, however long each one takes: the data
        of a run then do not depend on the hardware, and short episodes do not come first.
        """
        oldest = min(map(_age, running), default=None)
        before = sum(oldest is None or (version, id) < oldest for id, version in self._versions.items())
        return before >= self.bound.groups_per_step

    def select(
        self, step: int, running: Iterable[GroupInLine], survivors: float = 1.0, start_only: bool = False
    ) -> Selection | None:
        """What the step consumes and what it gives up, or None while it has to wait."""
        if len(self.groups) < self.bound.groups_per_step:
            return None
        return select([*self._complete(), *running], step, self.bound, survivors, start_only)

    def left_over(self, step: int) -> list[int]:
        """Groups that find no place in this step or a later one: more survived the filter than was expected."""
        line = sorted(self._complete(), key=_age)
        return [group.id for group in _too_many(line, 0, step, self.bound, survivors=1.0)]

    def _complete(self) -> list[GroupInLine]:
        return [GroupInLine(id, version, complete=True) for id, version in self._versions.items()]


REMEMBERED = 64
"""Groups the share of survivors is estimated from: enough to be steady, few enough to follow the policy."""


class GroupFilter:
    """Sorts out groups that teach nothing: if all members got the same reward, every advantage is zero.

    Waiting for a replacement until such a group has ended would be serial, so the scheduler starts as many groups at
    once as are needed for enough of them to survive.
    """

    def __init__(self, kind: Literal["none", "zero_variance"]) -> None:
        self.kind = kind
        self.kept_lately: deque[bool] = deque(maxlen=REMEMBERED)

    def keeps(self, group: Group) -> bool:
        """Whether the group is worth a place in a batch."""
        if self.kind == "none":
            return True
        kept = len({member.reward for member in group.members}) > 1
        self.kept_lately.append(kept)
        return kept

    @property
    def survivors(self) -> float:
        """The share of groups expected to be kept; 1 until something is known, never 0."""
        return (1 + sum(self.kept_lately)) / (1 + len(self.kept_lately))
