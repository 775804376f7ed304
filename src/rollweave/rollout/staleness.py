"""How far rollout may run ahead of training.

Version v means v completed train steps. The staleness of a trajectory at step n is n minus the version of its
oldest sampled token. Admitting a group commits it to a position in line: with k groups ahead of it, N to a
batch, it is consumed by step `next_step + k // N`. It is admitted only if even then it is not too old, so
nothing that was admitted ever has to be thrown away for its age.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StalenessBound:
    alpha: float
    groups_per_step: int

    def admits(self, ahead: int, next_step: int, engine_version: int) -> bool:
        """Whether one more group may start with `ahead` groups running or buffered."""
        return next_step + ahead // self.groups_per_step - engine_version <= self.alpha

    def can_wait(self, versions: Iterable[int], next_step: int) -> bool:
        """Whether groups that started from these versions can all still be consumed from `next_step` on.

        Not only those at their limit count: with alpha = 2, more groups than fit into one batch may reach it together
        if newer ones keep overtaking them.
        """
        line = sorted(versions)
        return all(next_step + place // self.groups_per_step - v <= self.alpha for place, v in enumerate(line))
