"""SampleBuffer: complete groups waiting for the train step that consumes them."""

from __future__ import annotations

from collections.abc import Iterable

from rollweave.rollout.selection import Candidate, Selection, left_over, select
from rollweave.rollout.staleness import StalenessBound
from rollweave.trajectory import Group


class SampleBuffer:
    def __init__(self, bound: StalenessBound) -> None:
        self.bound = bound
        self.groups: dict[int, Group] = {}

    def __len__(self) -> int:
        return len(self.groups)

    def put(self, group: Group) -> None:
        self.groups[group.id] = group

    def take(self, id: int) -> Group:
        return self.groups.pop(id)

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
        return [Candidate(group.id, group.oldest_version, complete=True) for group in self.groups.values()]
