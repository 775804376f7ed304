"""The loss of a train step, token by token, on tensors of one dimension (the sampled tokens of a micro-batch).

    loss = mismatch factor x policy objective + KL + entropy (+ value)

**Like with like.** A ratio compares two probabilities of the same kind. If the engine only scaled by a temperature,
both sides are log-probs of softmax(logits / temperature). If top-p or top-k cut the support (or the draw was greedy),
the transformed distribution is renormalised over a set that changes abruptly with the weights; there both sides are
the policy's raw log-probs at temperature 1. `packing` makes that choice per span; here both sides are just tensors.

**The denominator** of the ratio is explicit. `behaviour`: the engine's log-probs of the very draw, so stale or
slightly different engine arithmetic is corrected for and clipped. `proximal`: the trainer's own log-probs before the
step: the ratio then measures only how far this step's mini-batches have moved.

**Weights, not means.** Each token comes with its share of the whole mini-batch (`token_weights`), and losses are
weighted sums. The update therefore does not depend on how the mini-batch was cut into micro-batches.

Engine and trainer compute the same model with different arithmetic; what is done about the difference.

The weight of a token is exp(before - behaviour): the trainer's log-prob before the step minus the engine's of the very
draw. On tokens of the current version that is the mismatch and nothing else. On stale tokens the policy has moved in
between, and the same number holds staleness and mismatch together; nobody can tell them apart afterwards.

Sums and means of tokens that belong together, given back to each of them.

`index` says which one a token belongs to: numbers from 0 that never fall. A trajectory is never cut in two by
micro-batches, so what is taken together here does not depend on how they were cut.

The policy objectives: per sampled token, the loss to minimise, the ratio it corrects by, and where it was cut.

Two families. *Clipped*: the ratio itself carries the gradient, until a clip stops it (ppo, decoupled_ppo, gspo).
*Weighted*: the gradient is that of log pi, times a weight without gradient made of the ratio (tis, cispo, topr); kimi
has no weight and a penalty instead. `docs/losses.md` has the formulas in one table.
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


def sum_within(values: Tensor, index: Tensor) -> Tensor:
    sums = values.new_zeros(int(index[-1]) + 1).index_add_(0, index, values)
    return sums[index]


def mean_within(values: Tensor, index: Tensor) -> Tensor:
    return sum_within(values, index) / torch.bincount(index)[index]


MAX_LOG_RATIO = 20.0
"""Beyond it the ratio is held (5e8): far outside any clip, and an infinite one would make the gradient NaN."""


@dataclass(slots=True)
class TokenBatch:
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


def objective(draws: TokenBatch, config: LossConfig) -> Objective:
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
    """The clip looks at this step's movement only; the weight corrects what happened before it."""
    before = draws.known_before()
    ratio = exp(draws.new - before)
    weight = exp(before - draws.behaviour)
    surrogate, clipped = _clipped(ratio, draws.advantage, config.clip_low, config.clip_high)
    capped = weight if config.weight_cap is None else weight.clamp(max=config.weight_cap)
    return Objective(-capped * surrogate, (ratio * weight).detach(), clipped)


def gspo(draws: TokenBatch, config: GSPOLoss) -> Objective:
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
    """What counts as good is the sign of the advantage: with the reward's own, a reward above 0 but below its
    group's mean would be pushed down without a bound."""
    ratio = exp(draws.new - draws.old(config)).detach()
    good = draws.advantage > 0
    weight = torch.where(good, config.positive_weight, config.negative_weight * ratio.clamp(max=1.0))
    return Objective(-weight * draws.advantage * draws.new, ratio, ~good & (ratio > 1.0))


def kimi(draws: TokenBatch, config: KimiLoss) -> Objective:
    """No weight: the squared log-ratio pulls back what has moved, whatever its advantage."""
    gap = draws.new - draws.old(config)
    loss = 0.5 * config.tau * gap**2 - draws.advantage * draws.new
    return Objective(loss, exp(gap).detach(), torch.zeros_like(gap, dtype=torch.bool))


def exp(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


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


@dataclass(slots=True)
class TokenLoss:
    """Per-token terms of the loss, before weighting."""

    policy: Tensor
    kl: Tensor
    entropy: Tensor
    corrected_by: Tensor
    """Everything that tells the draw from an on-policy one: the ratio, times the mismatch weight if there is one."""
    clipped: Tensor
    """Where the objective's own bound stopped the gradient or cut the weight."""
    mismatch: Correction | None = None
    value: Tensor | None = None

    def detached(self) -> TokenLoss:
        value = None if self.value is None else self.value.detach()
        kept = (self.corrected_by, self.clipped, self.mismatch, value)
        return TokenLoss(self.policy.detach(), self.kl.detach(), self.entropy.detach(), *kept)


def token_weights(sampled: Sequence[int], aggregation: Aggregation) -> list[float]:
    """The weight of each token of each trajectory, given the trajectories' sampled lengths in the mini-batch.

    `token`: every token the same. `sequence`: every trajectory the same, shared out over its tokens.
    """
    if aggregation == "token":
        return [1.0 / sum(sampled)] * len(sampled)
    return [1.0 / (len(sampled) * length) for length in sampled]


def token_loss(
    policy: Objective, mismatch: Correction | None, new: Tensor, entropy: Tensor, reference: Tensor | None
) -> TokenLoss:
    """The terms put together; gradients flow through the objective, `new` and `entropy`."""
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
    """The low-variance, never negative estimate of KL(new || reference) from tokens drawn from new."""
    gap = reference - new
    return torch.exp(gap) - gap - 1.0
