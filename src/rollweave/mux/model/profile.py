"""What the scheduler believes about a job before it has run: two phase times, two sizes, two memories.

Times are worst case (every response at the configured maximum length), so that a plan made from them can only be
beaten by reality. All times are seconds, all memories GB of host memory per node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollweave.errors import RollweaveError


class ProfileError(RollweaveError):
    """A job profile nobody could schedule."""


@dataclass(frozen=True, slots=True)
class JobProfile:
    """One iteration of a job on the nodes it asked for."""

    t_roll: float
    t_train: float
    n_roll: int = 1
    n_train: int = 1
    mem_roll: float = 0.0
    mem_train: float = 0.0
    t_sync: float = 0.0
    switch_roll: float = 0.0
    """Warm start before a rollout phase; paid only in company, a job alone on its nodes never leaves the GPUs."""
    switch_train: float = 0.0
    cold_roll: float = 0.0
    cold_train: float = 0.0
    move_s: float = 300.0
    """How long a move to other nodes stops the job (197-419 s for 7B-32B, RollMux section 7)."""
    dp_eff: float = 1.0
    """Share of the linear speed-up that a different train width really gives."""

    def __post_init__(self) -> None:
        if not (self.t_roll > 0 and self.t_train > 0):
            raise ProfileError(f"t_roll={self.t_roll} and t_train={self.t_train} must both be above 0 seconds")
        if self.n_roll < 1 or self.n_train < 1:
            raise ProfileError(f"n_roll={self.n_roll} and n_train={self.n_train} must both be at least 1 node")
        if not 0 < self.dp_eff <= 1:
            raise ProfileError(f"dp_eff={self.dp_eff} must be above 0 and at most 1")

    @property
    def solo_s(self) -> float:
        """T_solo: one iteration alone on the nodes it asked for. The reference of its SLO."""
        return self.t_roll + self.t_train + self.t_sync

    @property
    def cold_s(self) -> float:
        """Cold start, both pools at once."""
        return max(self.cold_roll, self.cold_train)

    def train_at(self, width: int) -> float:
        """Train phase (with its weight sync) on `width` train nodes instead of the requested ones."""
        if width == self.n_train:
            return self.t_train + self.t_sync
        return self.t_train * self.n_train / (width * self.dp_eff) + self.t_sync

    def with_times(self, t_roll: float, t_train: float) -> JobProfile:
        return replace(self, t_roll=t_roll, t_train=t_train)
