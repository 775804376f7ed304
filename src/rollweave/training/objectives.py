"""The policy objectives: per sampled token, the loss to minimise, the ratio it corrects by, and where it was cut.

Two families. *Clipped*: the ratio itself carries the gradient, until a clip stops it (ppo, decoupled_ppo, gspo).
*Weighted*: the gradient is that of log pi, times a weight without gradient made of the ratio (tis, cispo, topr); kimi
has no weight and a penalty instead. `docs/losses.md` has the formulas in one table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollweave.config.losses import (
    CISPOLoss,
    DecoupledPPOLoss,
    GSPOLoss,
    KimiLoss,
    LossConfig,
    PPOLoss,
    RatioLoss,
    TISLoss,
    TOPRLoss,
)
from rollweave.training.levels import mean_within

MAX_LOG_RATIO = 20.0
"""Beyond it the ratio is held (5e8): far outside any clip, and an infinite one would make the gradient NaN."""


@dataclass(slots=True)
class Draws:
    """The sampled tokens of a micro-batch as an objective sees them. Gradients flow to `new` only."""

    new: Tensor
    behaviour: Tensor
    before: Tensor | None
    """The trainer's log-probs before the step, if the objective needs them."""
    advantage: Tensor
    rows: Tensor
    """Which trajectory each token is of."""

    def old(self, config: RatioLoss) -> Tensor:
        return self.known_before() if config.denominator == "proximal" else self.behaviour

    def known_before(self) -> Tensor:
        assert self.before is not None, "looked at before the first update"
        return self.before


@dataclass(slots=True)
class Objective:
    loss: Tensor
    ratio: Tensor
    """What the draw is corrected by, before any bound; without gradient."""
    clipped: Tensor
    """Where a bound stopped the gradient or cut the weight."""


def objective(draws: Draws, config: LossConfig) -> Objective:
    match config:
        case PPOLoss():
            return ppo(draws, config)
        case DecoupledPPOLoss():
            return decoupled_ppo(draws, config)
        case GSPOLoss():
            return gspo(draws, config)
        case TISLoss():
            return tis(draws, config)
        case CISPOLoss():
            return cispo(draws, config)
        case TOPRLoss():
            return topr(draws, config)
        case KimiLoss():
            return kimi(draws, config)


# ------------------------------------------------------------------------------------------------ clipped


def ppo(draws: Draws, config: PPOLoss) -> Objective:
    ratio = exp(draws.new - draws.old(config))
    surrogate, clipped = _clipped(ratio, draws.advantage, config.clip_low, config.clip_high)
    if config.dual_clip is not None:
        floor = config.dual_clip * draws.advantage
        too_low = (draws.advantage < 0) & (surrogate < floor)
        surrogate = torch.where(too_low, floor, surrogate)
        clipped = clipped | too_low
    return Objective(-surrogate, ratio.detach(), clipped)


def decoupled_ppo(draws: Draws, config: DecoupledPPOLoss) -> Objective:
    """The clip looks at this step's movement only; the weight corrects what happened before it."""
    before = draws.known_before()
    ratio = exp(draws.new - before)
    weight = exp(before - draws.behaviour)
    surrogate, clipped = _clipped(ratio, draws.advantage, config.clip_low, config.clip_high)
    capped = weight if config.weight_cap is None else weight.clamp(max=config.weight_cap)
    return Objective(-capped * surrogate, (ratio * weight).detach(), clipped)


def gspo(draws: Draws, config: GSPOLoss) -> Objective:
    """Every token carries its trajectory's ratio and its own gradient, so that advantages may differ per token.

    Where they do not, that is the gradient of the trajectory's ratio itself.
    """
    shared = exp(mean_within((draws.new - draws.old(config)).detach(), draws.rows))
    ratio = shared * torch.exp(draws.new - draws.new.detach())
    surrogate, clipped = _clipped(ratio, draws.advantage, config.clip_low, config.clip_high)
    return Objective(-surrogate, shared, clipped)


def _clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    plain = ratio * advantage
    bounded = ratio.clamp(1.0 - low, 1.0 + high) * advantage
    return torch.minimum(plain, bounded), (bounded < plain).detach()


# ------------------------------------------------------------------------------------------------ weighted


def tis(draws: Draws, config: TISLoss) -> Objective:
    ratio = exp(draws.new - draws.old(config)).detach()
    weight = ratio.clamp(config.weight_low, config.weight_high)
    return Objective(-weight * draws.advantage * draws.new, ratio, weight != ratio)


def cispo(draws: Draws, config: CISPOLoss) -> Objective:
    ratio = exp(draws.new - draws.old(config)).detach()
    weight = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    clipped = weight != ratio
    if config.unified_mask:
        _, by_ppo = _clipped(ratio, draws.advantage, config.clip_low, config.clip_high)
        weight = weight.masked_fill(by_ppo, 0.0)
    return Objective(-weight * draws.advantage * draws.new, ratio, clipped)


def topr(draws: Draws, config: TOPRLoss) -> Objective:
    """What counts as good is the sign of the advantage: with the reward's own, a reward above 0 but below its
    group's mean would be pushed down without a bound."""
    ratio = exp(draws.new - draws.old(config)).detach()
    good = draws.advantage > 0
    weight = torch.where(good, config.positive_weight, config.negative_weight * ratio.clamp(max=1.0))
    return Objective(-weight * draws.advantage * draws.new, ratio, ~good & (ratio > 1.0))


def kimi(draws: Draws, config: KimiLoss) -> Objective:
    """No weight: the squared log-ratio pulls back what has moved, whatever its advantage."""
    gap = draws.new - draws.old(config)
    loss = 0.5 * config.tau * gap**2 - draws.advantage * draws.new
    return Objective(loss, exp(gap).detach(), torch.zeros_like(gap, dtype=torch.bool))


def exp(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
