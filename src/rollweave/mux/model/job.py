"""A submitted job: its promise (SLO, iterations), its progress, and the deadline that follows from both.

Progress is fluid between reports: a job that runs gains one iteration per `pace` seconds. The replay advances it
exactly so; the daemon overwrites it with what really happened (`report`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollweave.mux.model.profile import JobProfile, ProfileError


@dataclass(slots=True)
class Job:
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
