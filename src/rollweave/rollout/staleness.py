"""How far rollout may run ahead of training.

Version v means v completed train steps. The staleness of a trajectory at step n is n minus the version of its
oldest sampled token. Admitting a group commits it to a position in line: with k groups ahead of it, N to a
batch, it is consumed by step `next_step + k // N`. It is admitted only if even then it is not too old, so
nothing that was admitted ever has to be thrown away for its age.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StalenessBound:
    alpha: int
    groups_per_step: int

    def admits(self, ahead: int, next_step: int, engine_version: int) -> bool:
        """Whether one more group may start with `ahead` groups running or buffered."""
        return next_step + ahead // self.groups_per_step - engine_version <= self.alpha

    def at_limit(self, version: int, step: int) -> bool:
        """Whether a group that started from `version` must be consumed at `step`, or never."""
        return step - version >= self.alpha
