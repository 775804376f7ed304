"""A mux job: its profile, its SLO, its progress, and the deadline that follows from them.

The profile is what the scheduler assumes about a job before it has run. Its times are the worst case (every response
at the configured maximum length), so that reality can only be faster than a plan. All times are seconds, all
memories GB of host memory per node.

Between reports progress is estimated: a job that runs gains one iteration per `pace` seconds. The replay of a trace
advances jobs exactly like that; the daemon replaces the estimate by the real progress (`report`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rollweave.errors import RollweaveError


class ProfileError(RollweaveError):
    """A job profile that cannot be scheduled."""


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
    """Seconds of a warm start before a rollout phase. A job alone on its nodes stays on the GPUs and pays none."""
    switch_train: float = 0.0
    cold_roll: float = 0.0
    cold_train: float = 0.0
    move_s: float = 300.0
    """How long a move to other nodes stops the job (197-419 s for 7B-32B, RollMux section 7)."""
    dp_eff: float = 1.0
    """The share of the linear speed-up that a different number of train nodes really gives."""

    def __post_init__(self) -> None:
        if not (self.t_roll > 0 and self.t_train > 0):
            raise ProfileError(f"t_roll={self.t_roll} and t_train={self.t_train} must both be above 0 seconds")
        if self.n_roll < 1 or self.n_train < 1:
            raise ProfileError(f"n_roll={self.n_roll} and n_train={self.n_train} must both be at least 1 node")
        if not 0 < self.dp_eff <= 1:
            raise ProfileError(f"dp_eff={self.dp_eff} must be above 0 and at most 1")

    @property
    def solo_s(self) -> float:
        """T_solo: one iteration alone on the nodes that the job asked for. Its SLO is relative to this."""
        return self.t_roll + self.t_train + self.t_sync

    @property
    def cold_s(self) -> float:
        """Seconds of a cold start; both pools start at the same time."""
        return max(self.cold_roll, self.cold_train)

    def train_at(self, width: int) -> float:
        """Seconds of the train phase (with its weight sync) on `width` train nodes instead of the requested ones."""
        if width == self.n_train:
            return self.t_train + self.t_sync
        return self.t_train * self.n_train / (width * self.dp_eff) + self.t_sync

    def with_times(self, t_roll: float, t_train: float) -> JobProfile:
        return replace(self, t_roll=t_roll, t_train=t_train)


@dataclass(slots=True)
class MuxJob:
    """A submitted job, as the scheduler sees it."""

    id: str
    profile: JobProfile
    """The times used for planning; `Scheduler.observe` may correct them."""
    slo: float
    """The tolerated slow-down relative to `solo_s`, at least 1."""
    n_iters: float
    """The total work in iterations; infinity if it is not known."""
    solo_s: float = 0.0
    """The T_solo to which the SLO is relative; fixed at submission."""
    done: float = 0.0
    """The number of iterations finished at `as_of`."""
    as_of: float = 0.0
    resumes_at: float = 0.0
    """The end of a cold start or a move; the job makes no progress before it."""
    pace: float = 0.0
    """The expected seconds per iteration in its present group."""
    deadline: float = math.inf
    """Set once, at the first placement: the time at which it could start + slo x solo time of its work."""
    moved_at: float = -math.inf
    seen: tuple[float, ...] = ()
    """The phase times of the last observed iterations (see `decisions/lookout.py`)."""

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
        """The time at which the last iteration ends if the pace is `pace` from now on."""
        return max(now, self.resumes_at) + self.remaining(now) * pace

    def finish_at(self) -> float:
        """The time at which the last iteration ends at the present pace."""
        return max(self.as_of, self.resumes_at) + (self.n_iters - self.done) * self.pace

    def report(self, done: float, now: float) -> None:
        """Replace the estimated progress by the real one."""
        self.done, self.as_of = min(done, self.n_iters), now

    def promise(self, now: float) -> None:
        """Set the deadline at the first placement. The time of the SLO starts after the cold start."""
        self.as_of = now
        self.resumes_at = now + self.profile.cold_s
        self.deadline = self.resumes_at + self.slo * (self.n_iters - self.done) * self.solo_s

    def pause(self, now: float) -> None:
        """Pause for a move to other nodes. The time of the SLO goes on meanwhile."""
        self.settle(now)
        self.moved_at = now
        self.resumes_at = max(self.resumes_at, now + self.profile.move_s)

    def settle(self, now: float) -> None:
        """Record the estimated progress; called before the pace changes."""
        self.report(self.done_at(now), now)
