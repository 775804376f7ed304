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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollweave.config.losses import Aggregation, Loss
from rollweave.training.mismatch import Correction
from rollweave.training.objectives import Objective


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
