"""SampleBuffer: complete groups waiting for the train step that consumes them.

`take` serves the oldest first and never leaves behind what could then no longer be consumed in time: if a running
group would be too old by the time its turn comes, the step waits for it (policy `wait`: nothing is wasted and nobody
is starved).
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

    def take(self, step: int, running: Mapping[int, int]) -> Batch | None:
        """The batch of this step, or None while it cannot be had. `running`: group -> version at admission."""
        size = self.bound.groups_per_step
        if len(self._groups) < size:
            return None
        oldest_first = sorted(self._groups.values(), key=lambda group: (group.oldest_version, group.id))
        chosen, rest = oldest_first[:size], oldest_first[size:]
        if not self.bound.can_wait([*running.values(), *(group.oldest_version for group in rest)], step + 1):
            return None
        for group in chosen:
            del self._groups[group.id]
        return Batch(step, chosen)
