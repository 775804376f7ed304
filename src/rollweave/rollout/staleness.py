"""How far rollout may run ahead of training.

Version v means v completed train steps. The staleness of a group at step n is n minus the version of its oldest
sampled token. With N groups to a batch and alpha = k + f, at step n every group has staleness k at most, but for a
share f of the batch that may have k + 1.

Admitting a group commits it to a place in line: with p groups ahead of it, it is consumed by step
`next_step + p // N`. It is admitted only if even then it is not too old (`room`), so nothing that was admitted has to
be thrown away for its age as long as everybody is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor


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
