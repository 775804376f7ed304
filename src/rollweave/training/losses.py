"""The loss of a train step, per sampled token, on tensors of one dimension (the sampled tokens of a micro-batch).

    loss = mismatch factor x policy objective + KL + entropy (+ value)

**The ratio** compares two log-probs of the same kind. If the engine only scaled by a temperature, both are log-probs of
softmax(logits / temperature). If top-p, top-k or greedy sampling excluded tokens, the distribution of the draw changes
abruptly with the weights, so both are the policy's raw log-probs at temperature 1. `packing` chooses per span.

**The denominator** of the ratio is `behaviour`, the engine's log-probs of the draw, which corrects and clips stale data
and differences of engine arithmetic; or `proximal`, the trainer's own log-probs before the step, so that the ratio
measures only how far this step's mini-batches have moved.

**Weights.** Each token has a weight, its share of the whole mini-batch (`token_weights`), and losses are weighted sums.
So the update does not depend on how the mini-batch was divided into micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollweave.config.losses import (
    Aggregation,
    CISPOLoss,
    DecoupledPPOLoss,
    GSPOLoss,
    KimiLoss,
    Level,
    Loss,
    LossConfig,
    MismatchConfig,
    MismatchMask,
    MismatchWeight,
    NoMismatch,
    PPOLoss,
    RatioLoss,
    TISLoss,
    TOPRLoss,
)

# ---------------------------------------------------------------------------------------------- the whole loss


@dataclass(slots=True)
class TokenLoss:
    """The terms of the loss per token, before weighting."""

    policy: Tensor
    kl: Tensor
    entropy: Tensor
    corrected_by: Tensor
    """The full correction of the draw: the ratio, times the mismatch weight if there is one."""
    clipped: Tensor
    """Whether the objective's own bound stopped the gradient or reduced the weight."""
    mismatch: Correction | None = None
    value: Tensor | None = None

    def detached(self) -> TokenLoss:
        value = None if self.value is None else self.value.detach()
        kept = (self.corrected_by, self.clipped, self.mismatch, value)
        return TokenLoss(self.policy.detach(), self.kl.detach(), self.entropy.detach(), *kept)


def token_weights(sampled: Sequence[int], aggregation: Aggregation) -> list[float]:
    """The weight of each token of each trajectory, given the trajectories' sampled lengths in the mini-batch.

    `token`: all tokens have the same weight. `sequence`: all trajectories have the same weight, divided among tokens.
    """
    if aggregation == "token":
        return [1.0 / sum(sampled)] * len(sampled)
    return [1.0 / (len(sampled) * length) for length in sampled]


def unscaled_weight(sampled: int, aggregation: Aggregation) -> float:
    """The weight of each token of a trajectory while the rest of the mini-batch is not known."""
    return 1.0 if aggregation == "token" else 1.0 / sampled


def weight_scale(sampled: Sequence[int], aggregation: Aggregation) -> float:
    """The factor from unscaled weights to `token_weights`, once all trajectories are known."""
    return 1.0 / (sum(sampled) if aggregation == "token" else len(sampled))


def token_loss(
    policy: Objective, mismatch: Correction | None, new: Tensor, entropy: Tensor, reference: Tensor | None
) -> TokenLoss:
    """Put the terms together. Gradients flow through the objective, `new` and `entropy`."""
    kl = torch.zeros_like(new) if reference is None else k3(new, reference)
    if mismatch is None:
        return TokenLoss(policy.loss, kl, entropy, policy.ratio, policy.clipped)
    corrected_by = policy.ratio * mismatch.factor if mismatch.weighs else policy.ratio
    return TokenLoss(policy.loss * mismatch.factor, kl, entropy, corrected_by, policy.clipped, mismatch)


def total(loss: TokenLoss, weight: Tensor, config: Loss, value_coefficient: float = 0.0) -> Tensor:
    """The scalar to differentiate: this micro-batch's share of the mini-batch's loss."""
    terms = loss.policy + config.kl_coefficient * loss.kl - config.entropy_coefficient * loss.entropy
    if loss.value is not None:
        terms = terms + value_coefficient * loss.value
    return (weight * terms).sum()


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """An estimate of KL(new || reference) from tokens drawn from `new`: of low variance and never negative."""
    gap = reference - new
    return torch.exp(gap) - gap - 1.0


# ------------------------------------------------------------------------------------------- policy objectives


@dataclass(slots=True)
class TokenBatch:
    """The sampled tokens of a micro-batch, as input of an objective. Gradients flow to `new` only."""

    new: Tensor
    behaviour: Tensor
    before: Tensor | None
    """The trainer's log-probs before the step, if the objective needs them."""
    advantage: Tensor
    rows: Tensor
    """The trajectory of each token."""

    def old(self, config: RatioLoss) -> Tensor:
        return self.known_before() if config.denominator == "proximal" else self.behaviour

    def known_before(self) -> Tensor:
        assert self.before is not None, "recorded before the first update"
        return self.before


@dataclass(slots=True)
class Objective:
    """The result of a policy objective, per token."""

    loss: Tensor
    ratio: Tensor
    """The ratio that corrects the draw, before any bound; without gradient."""
    clipped: Tensor
    """Whether a bound stopped the gradient or reduced the weight."""


def objective(draws: TokenBatch, config: LossConfig) -> Objective:
    """Compute the policy objective that the job has chosen; `docs/losses.md` has the formulas in one table.

    There are two families. *Clipped*: the ratio itself has the gradient, until a clip stops it (ppo, decoupled_ppo,
    gspo). *Weighted*: the gradient is that of log pi, times a weight made of the ratio, without gradient (tis, cispo,
    topr); kimi has no weight, but a penalty.
    """
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


def ppo(draws: TokenBatch, config: PPOLoss) -> Objective:
    ratio = exp(draws.new - draws.old(config))
    surrogate, clipped = _clipped(ratio, draws.advantage, config.clip_low, config.clip_high)
    if config.dual_clip is not None:
        floor = config.dual_clip * draws.advantage
        too_low = (draws.advantage < 0) & (surrogate < floor)
        surrogate = torch.where(too_low, floor, surrogate)
        clipped = clipped | too_low
    return Objective(-surrogate, ratio.detach(), clipped)


def decoupled_ppo(draws: TokenBatch, config: DecoupledPPOLoss) -> Objective:
    """The clip limits the movement of this step only; the weight corrects for the movement before it."""
    before = draws.known_before()
    ratio = exp(draws.new - before)
    weight = exp(before - draws.behaviour)
    surrogate, clipped = _clipped(ratio, draws.advantage, config.clip_low, config.clip_high)
    capped = weight if config.weight_cap is None else weight.clamp(max=config.weight_cap)
    return Objective(-capped * surrogate, (ratio * weight).detach(), clipped)


def gspo(draws: TokenBatch, config: GSPOLoss) -> Objective:
    """Every token has its trajectory's ratio and its own gradient, so that advantages may differ per token.

    If they do not differ, the result is the gradient of the trajectory's ratio itself.
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


def tis(draws: TokenBatch, config: TISLoss) -> Objective:
    ratio = exp(draws.new - draws.old(config)).detach()
    weight = ratio.clamp(config.weight_low, config.weight_high)
    return Objective(-weight * draws.advantage * draws.new, ratio, weight != ratio)


def cispo(draws: TokenBatch, config: CISPOLoss) -> Objective:
    ratio = exp(draws.new - draws.old(config)).detach()
    weight = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    clipped = weight != ratio
    if config.unified_mask:
        _, by_ppo = _clipped(ratio, draws.advantage, config.clip_low, config.clip_high)
        weight = weight.masked_fill(by_ppo, 0.0)
    return Objective(-weight * draws.advantage * draws.new, ratio, clipped)


def topr(draws: TokenBatch, config: TOPRLoss) -> Objective:
    """A token counts as good if its advantage is positive. With the sign of the reward instead, a positive reward below
    its group's mean would be pushed down without a bound."""
    ratio = exp(draws.new - draws.old(config)).detach()
    good = draws.advantage > 0
    weight = torch.where(good, config.positive_weight, config.negative_weight * ratio.clamp(max=1.0))
    return Objective(-weight * draws.advantage * draws.new, ratio, ~good & (ratio > 1.0))


def kimi(draws: TokenBatch, config: KimiLoss) -> Objective:
    """There is no weight; the squared log-ratio pulls every token back that has moved, whatever its advantage."""
    gap = draws.new - draws.old(config)
    loss = 0.5 * config.tau * gap**2 - draws.advantage * draws.new
    return Objective(loss, exp(gap).detach(), torch.zeros_like(gap, dtype=torch.bool))


# ------------------------------------------------------------------------------- engine and trainer disagree


@dataclass(slots=True)
class Correction:
    """The correction for the difference between the engine's and the trainer's arithmetic, per token."""

    factor: Tensor
    """The factor on the policy loss of each token; without gradient."""
    cut: Tensor
    """Whether the weight was truncated or the token left out."""
    weighs: bool
    """Whether the factor is a weight (it corrects) or a mask (it only leaves tokens out)."""


def correction(
    before: Tensor | None, behaviour: Tensor, rows: Tensor, segments: Tensor, config: MismatchConfig
) -> Correction | None:
    """Compute the mismatch correction; None if the job has none.

    The weight of a token is exp(before - behaviour): the trainer's log-prob before the step minus the engine's of the
    draw. On tokens of the current version that is the mismatch alone. On stale tokens the policy has changed since the
    draw, so the number contains staleness and mismatch together, and they cannot be separated.
    """
    if isinstance(config, NoMismatch):
        return None
    assert before is not None, "recorded before the first update"
    ratio = exp(_combine(before - behaviour, rows, segments, config.level))
    match config:
        case MismatchWeight():
            return Correction(ratio.clamp(max=config.upper), ratio > config.upper, weighs=True)
        case MismatchMask():
            outside = (ratio < config.lower) | (ratio > config.upper)
            return Correction((~outside).to(ratio.dtype), outside, weighs=False)


def _combine(gap: Tensor, rows: Tensor, segments: Tensor, level: Level) -> Tensor:
    match level:
        case "token":
            return gap
        case "segment":
            return mean_within(gap, segments)
        case "geometric":
            return mean_within(gap, rows)
        case "sequence":
            return sum_within(gap, rows)


# ------------------------------------------------------------------------------------------- shared arithmetic


MAX_LOG_RATIO = 20.0
"""The largest log-ratio (a ratio of 5e8). It is far outside any clip; an infinite ratio would make the gradient NaN."""


def exp(log_ratio: Tensor) -> Tensor:
    """The ratio, limited so that it stays finite."""
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def sum_within(values: Tensor, index: Tensor) -> Tensor:
    """For each token, the sum over all tokens with the same index; indices count from 0 and never fall.

    Micro-batches never divide a trajectory, so the result does not depend on how they were made.
    There are at least as many tokens as indices, so the size is known without a look at them.
    """
    sums = torch.zeros_like(values).index_add_(0, index, values)
    return sums[index]


def mean_within(values: Tensor, index: Tensor) -> Tensor:
    """For each token, the mean over all tokens with the same index."""
    return sum_within(values, index) / sum_within(torch.ones_like(values), index)
