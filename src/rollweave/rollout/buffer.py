"""SampleBuffer: complete groups waiting for the train step that consumes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rollweave.rollout.selection import Candidate, Selection, left_over, select
from rollweave.rollout.staleness import StalenessBound
from rollweave.trajectory import Group


class SampleBuffer:
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

    def must_wait(self, step: int, running: Iterable[int]) -> bool:
        """At a glance: whether more groups of these versions run than later steps have places for.

        Only where everybody wants a place, nobody may be given up and no more were issued than fit; `select` knows
        the rest, but looks at every group. A step that waits for its slowest group asks once per group that ends.
        """
        under_way, complete = Counter(running), Counter(self._versions.values())
        late, everybody, unfinished = False, 0, 0
        for version in sorted(under_way | complete):
            everybody += under_way[version] + complete[version]
            unfinished += under_way[version]
            places = self.bound.capacity(version, step + 1)
            if everybody > self.bound.groups_per_step + places:
                return False
            late |= unfinished > places
        return late

    def select(
        self, step: int, running: Iterable[Candidate], survivors: float = 1.0, start_only: bool = False
    ) -> Selection | None:
        """What the step consumes and what it gives up, or None while it has to wait (see `selection`)."""
        if len(self.groups) < self.bound.groups_per_step:
            return None
        return select([*self._complete(), *running], step, self.bound, survivors, start_only)

    def left_over(self, step: int) -> list[int]:
        """Groups that no step from this one on can consume any more."""
        return left_over(self._complete(), step, self.bound)

    def _complete(self) -> list[Candidate]:
        return [Candidate(id, version, complete=True) for id, version in self._versions.items()]
