"""Slow, obvious references: one Python loop per token, straight from the definitions."""

from __future__ import annotations

import math
import statistics


def advantages(rewards: list[float], normalise: str) -> list[float]:
    mean = statistics.fmean(rewards)
    if normalise == "none":
        return [reward - mean for reward in rewards]
    return [(reward - mean) / (statistics.pstdev(rewards) + 1e-6) for reward in rewards]


def surrogate(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    """PPO's objective for one token (to be maximised)."""
    clipped_ratio = min(max(ratio, 1 - low), 1 + high)
    value = min(ratio * advantage, clipped_ratio * advantage)
    if dual is not None and advantage < 0:
        value = max(value, dual * advantage)
    return value


def kl(new: float, reference: float) -> float:
    return math.exp(reference - new) - (reference - new) - 1


def aggregate(losses: list[list[float]], aggregation: str) -> float:
    """One number from the token losses of each trajectory."""
    if aggregation == "token":
        return statistics.fmean(loss for trajectory in losses for loss in trajectory)
    return statistics.fmean(statistics.fmean(trajectory) for trajectory in losses)


def ppo(
    new: list[list[float]],
    old: list[list[float]],
    reference: list[list[float]],
    entropy: list[list[float]],
    advantage: list[float],
    *,
    low: float,
    high: float,
    dual: float | None,
    kl_coefficient: float,
    entropy_coefficient: float,
    aggregation: str,
) -> float:
    losses = []
    for t in range(len(new)):
        tokens = []
        for i in range(len(new[t])):
            ratio = math.exp(new[t][i] - old[t][i])
            loss = -surrogate(ratio, advantage[t], low, high, dual)
            loss += kl_coefficient * kl(new[t][i], reference[t][i])
            loss -= entropy_coefficient * entropy[t][i]
            tokens.append(loss)
        losses.append(tokens)
    return aggregate(losses, aggregation)
