"""What a reward is: a function of a finished trajectory.

    def score(trajectory: Trajectory) -> float: ...

It may be `async`, and may return a `RewardResult` to name its parts. It should be pure: a trajectory can be
scored again after a crash. Raising makes the attempt `reward-failed`: it is left out of its group and counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rollweave.trajectory import Trajectory


@dataclass(slots=True)
class RewardResult:
    value: float
    parts: dict[str, float] = field(default_factory=dict)
    """Shown in transcripts; not added to `value`."""


RewardFunction = Callable[[Trajectory], "float | RewardResult | Awaitable[float | RewardResult]"]
