"""The learning rate as a pure function of the train step: nothing to save, nothing to get out of step on a resume."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(step: int, *, peak: float, kind: Schedule, warmup: int, total: int, final_share: float) -> float:
    """The rate of train step `step` (from 0): a linear warm-up, then down to `final_share` of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - 1 - warmup))
    if kind == "constant":
        return peak
    if kind == "linear":
        return peak * (1.0 - (1.0 - final_share) * progress)
    return peak * (final_share + (1.0 - final_share) * 0.5 * (1.0 + math.cos(math.pi * progress)))
