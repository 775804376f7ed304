"""Engine and trainer compute the same model with different arithmetic; what is done about the difference.

The weight of a token is exp(before - behaviour): the trainer's log-prob before the step minus the engine's of the very
draw. On tokens of the current version that is the mismatch and nothing else. On stale tokens the policy has moved in
between, and the same number holds staleness and mismatch together; nobody can tell them apart afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rollweave.config.losses import Level, MismatchConfig, MismatchMask, MismatchWeight, NoMismatch
from rollweave.training.levels import mean_within, sum_within
from rollweave.training.objectives import exp


@dataclass(slots=True)
class Correction:
    factor: Tensor
    """What the policy loss of each token is multiplied by; without gradient."""
    cut: Tensor
    """Where the weight was truncated or the token left out."""
    weighs: bool
    """Whether the factor is a weight (it corrects) or a mask (it only leaves out)."""


def correction(
    before: Tensor | None, behaviour: Tensor, rows: Tensor, segments: Tensor, config: MismatchConfig
) -> Correction | None:
    """None if there is nothing to do."""
    if isinstance(config, NoMismatch):
        return None
    assert before is not None, "looked at before the first update"
    ratio = exp(_taken_together(before - behaviour, rows, segments, config.level))
    match config:
        case MismatchWeight():
            return Correction(ratio.clamp(max=config.upper), ratio > config.upper, weighs=True)
        case MismatchMask():
            outside = (ratio < config.lower) | (ratio > config.upper)
            return Correction((~outside).to(ratio.dtype), outside, weighs=False)


def _taken_together(gap: Tensor, rows: Tensor, segments: Tensor, level: Level) -> Tensor:
    match level:
        case "token":
            return gap
        case "segment":
            return mean_within(gap, segments)
        case "geometric":
            return mean_within(gap, rows)
        case "sequence":
            return sum_within(gap, rows)
