"""SampleBuffer: complete groups waiting for the train step that consumes them.

`take` is oldest first and never breaks the staleness bound: a group that would be too old for the next step is
taken now, and if one of those is still running, the step waits for it (policy `wait`: nothing is wasted and
nobody is starved).
"""

from __future__ import annotations

from collections.abc import Mapping

from rollweave.rollout.staleness import StalenessBound
from rollweave.trajectory import Batch, Group


class SampleBuffer:
    def __init__(self, bound: StalenessBound) -> None:
        self.bound = bound
        self._groups: dict[int, Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: Group) -> None:
        self._groups[group.id] = group

    def missing(self, step: int, running: Mapping[int, int]) -> list[int]:
        """The running groups (id -> version at admission) that step must wait for because of their age."""
        return sorted(group for group, version in running.items() if self.bound.at_limit(version, step))

    def take(self, step: int, running: Mapping[int, int]) -> Batch | None:
        """The batch of this step, or None while it cannot be had."""
        if len(self._groups) < self.bound.groups_per_step or self.missing(step, running):
            return None
        oldest = sorted(self._groups.values(), key=lambda g: (not self.bound.at_limit(g.oldest_version, step), g.id))
        chosen = oldest[: self.bound.groups_per_step]
        for group in chosen:
            del self._groups[group.id]
        return Batch(step, chosen)
