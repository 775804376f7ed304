"""The policy loss, token by token, on tensors of one dimension (the sampled tokens of a micro-batch).

**Like with like.** A ratio compares two probabilities of the same kind. If the engine only scaled by a temperature,
both sides are log-probs of softmax(logits / temperature). If top-p or top-k cut the support (or the draw was greedy),
the transformed distribution is renormalised over a set that changes abruptly with the weights; there both sides are
the policy's raw log-probs at temperature 1. `packing` makes that choice per span; here both sides are just tensors.

**The denominator** of the ratio is explicit. `behaviour`: the engine's log-probs of the very draw, so stale or
slightly different engine arithmetic is corrected for and clipped. `proximal`: the trainer's own log-probs before the
step: the ratio then measures only how far this step's mini-batches have moved.

**Weights, not means.** Each token comes with its share of the whole mini-batch (`token_weights`), and losses are
weighted sums. The update therefore does not depend on how the mini-batch was cut into micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rollweave.config.training import PPOLoss

MAX_LOG_RATIO = 20.0
"""Beyond it the ratio is held (5e8): far outside any clip, and an infinite one would make the gradient NaN."""


@dataclass(slots=True)
class TokenLoss:
    """Per-token terms of the loss, before weighting."""

    policy: Tensor
    kl: Tensor
    entropy: Tensor
    ratio: Tensor
    clipped: Tensor
    """Where the clip (or the dual clip) stopped the gradient."""


def token_weights(sampled: Sequence[int], aggregation: Literal["token", "sequence"]) -> list[float]:
    """The weight of each token of each trajectory, given the trajectories' sampled lengths in the mini-batch.

    `token`: every token the same. `sequence`: every trajectory the same, shared out over its tokens.
    """
    if aggregation == "token":
        return [1.0 / sum(sampled)] * len(sampled)
    return [1.0 / (len(sampled) * length) for length in sampled]


def ppo_loss(
    new: Tensor, old: Tensor, advantage: Tensor, entropy: Tensor, reference: Tensor | None, config: PPOLoss
) -> TokenLoss:
    """The clipped surrogate of new against old, KL to the reference, entropy; gradients flow to `new` and `entropy`."""
    ratio = torch.exp((new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    surrogate, clipped = _clipped_surrogate(ratio, advantage, config)
    kl = torch.zeros_like(new) if reference is None else k3(new, reference)
    return TokenLoss(-surrogate, kl, entropy, ratio.detach(), clipped)


def total(loss: TokenLoss, weight: Tensor, config: PPOLoss) -> Tensor:
    """The scalar to differentiate: this micro-batch's share of the mini-batch's loss."""
    terms = loss.policy + config.kl_coefficient * loss.kl - config.entropy_coefficient * loss.entropy
    return (weight * terms).sum()


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """The low-variance, never negative estimate of KL(new || reference) from tokens drawn from new."""
    gap = reference - new
    return torch.exp(gap) - gap - 1.0


def _clipped_surrogate(ratio: Tensor, advantage: Tensor, config: PPOLoss) -> tuple[Tensor, Tensor]:
    plain = ratio * advantage
    bounded = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * advantage
    surrogate = torch.minimum(plain, bounded)
    clipped = bounded < plain
    if config.dual_clip is not None:
        floor = config.dual_clip * advantage
        too_low = (advantage < 0) & (surrogate < floor)
        surrogate = torch.where(too_low, floor, surrogate)
        clipped = clipped | too_low
    return surrogate, clipped.detach()
