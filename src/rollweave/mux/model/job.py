"""A submitted job: its promise (SLO, iterations), its progress, and the deadline that follows from both.

Progress is fluid between reports: a job that runs gains one iteration per `pace` seconds. The replay advances it
exactly so; the daemon overwrites it with what really happened (`report`).

What the scheduler believes about a job before it has run: two phase times, two sizes, two memories.

Times are worst case (every response at the configured maximum length), so that a plan made from them can only be
beaten by reality. All times are seconds, all memories GB of host memory per node.
"""

from __future__ import annotations

import math
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


@dataclass(slots=True)
class MuxJob:
    id: str
    profile: JobProfile
    """What planning believes now; `observe` may correct it."""
    slo: float
    """Tolerated slow-down against `solo_s`, at least 1."""
    n_iters: float
    """Total work in iterations, or infinity if it never says."""
    solo_s: float = 0.0
    """T_solo the SLO is judged against; fixed at submission."""
    done: float = 0.0
    """Iterations finished at `as_of`."""
    as_of: float = 0.0
    resumes_at: float = 0.0
    """Cold start or a move: no progress before this moment."""
    pace: float = 0.0
    """Expected seconds per iteration in its present group."""
    deadline: float = math.inf
    """Set once, when it is first placed: the moment it could start + slo x solo time of its work."""
    moved_at: float = -math.inf
    seen: tuple[float, ...] = ()
    """Statistics of observed iterations (see estimate.py)."""

    def __post_init__(self) -> None:
        if not self.slo >= 1:
            raise ProfileError(f"job {self.id}: slo={self.slo} must be at least 1 (1 means: as fast as alone)")
        if not self.n_iters > 0:
            raise ProfileError(f"job {self.id}: n_iters={self.n_iters} must be above 0")
        self.solo_s = self.solo_s or self.profile.solo_s

    def done_at(self, now: float) -> float:
        running = now - max(self.as_of, self.resumes_at)
        if running <= 0 or self.pace <= 0:
            return self.done
        return min(self.n_iters, self.done + running / self.pace)

    def remaining(self, now: float) -> float:
        return self.n_iters - self.done_at(now)

    def ends_at(self, now: float, pace: float) -> float:
        """When the last iteration ends at another pace from now on."""
        return max(now, self.resumes_at) + self.remaining(now) * pace

    def finish_at(self) -> float:
        """When the last iteration ends at the present pace."""
        return max(self.as_of, self.resumes_at) + (self.n_iters - self.done) * self.pace

    def report(self, done: float, now: float) -> None:
        """What really happened replaces the estimate."""
        self.done, self.as_of = min(done, self.n_iters), now

    def promise(self, now: float) -> None:
        """First placement: the SLO clock starts when the cold start is over."""
        self.as_of = now
        self.resumes_at = now + self.profile.cold_s
        self.deadline = self.resumes_at + self.slo * (self.n_iters - self.done) * self.solo_s

    def pause(self, now: float) -> None:
        """A move: it stops here and goes on elsewhere; the clock of its SLO does not stop."""
        self.settle(now)
        self.moved_at = now
        self.resumes_at = max(self.resumes_at, now + self.profile.move_s)

    def settle(self, now: float) -> None:
        """Turn estimated progress into recorded progress; called before its pace changes."""
        self.report(self.done_at(now), now)
