"""Long-tail migration: when most responses are done, the last ones move together and the next job gets the other GPUs.

Only requests move, and the job's own training still waits for every response, so its iteration is not shorter; what
shrinks is how long its rollout keeps the node from the next one. Planning never counts on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Migration:
    threshold: float = 0.8
    """Share of responses that are done when the rest is moved."""
    at_limit: float = 0.03
    """Share of responses cut off at the maximum length; with `spread` it fixes the law of lengths."""
    spread: float = 0.8
    """Standard deviation of the logarithm of a response's length."""
    gpus: int = 8
    tail_gpus: int = 2
    move_s: float = 3.0
    """Computing the kept tokens of the moved requests again (RollPacker measures less than 3 s for it)."""

    @property
    def busy_share(self) -> float:
        """Of a rollout, the share until the threshold: a request's time is its length, lengths are lognormal."""
        law = NormalDist()
        return min(1.0, math.exp(self.spread * (law.inv_cdf(self.threshold) - law.inv_cdf(1 - self.at_limit))))

    def occupancy(self, roll_s: float) -> float:
        """Seconds of the node that a rollout really takes from the next one: the tail holds some GPUs only."""
        until = self.busy_share * roll_s
        tail = (roll_s - until) * self.tail_gpus / self.gpus
        return min(roll_s, until + tail + self.move_s)
