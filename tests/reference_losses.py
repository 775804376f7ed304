"""Slow, obvious references: one Python loop per token, straight from the definitions.

A loss is a function of the log-probs `new` of each trajectory. Where a formula says stop-gradient, the reference looks
at `fixed` instead: equal to `new`, but not moved when a test asks for a derivative by moving `new` a little.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

Tokens = list[list[float]]
"""Per trajectory, one number per sampled token."""


@dataclass
class Data:
    new: Tokens
    fixed: Tokens
    behaviour: Tokens
    before: Tokens
    advantage: Tokens
    segments: list[list[int]]

    def old(self, denominator: str) -> Tokens:
        return self.before if denominator == "proximal" else self.behaviour


# ------------------------------------------------------------------------------------------------ advantages


def advantages(rewards: list[float], normalise: str) -> list[float]:
    mean = statistics.fmean(rewards)
    if normalise == "none":
        return [reward - mean for reward in rewards]
    return [(reward - mean) / (statistics.pstdev(rewards) + 1e-6) for reward in rewards]


def leave_one_out(rewards: list[float]) -> list[float]:
    others = [rewards[:i] + rewards[i + 1 :] for i in range(len(rewards))]
    return [reward - statistics.fmean(rest) if rest else 0.0 for reward, rest in zip(rewards, others, strict=True)]


def reinforce_plus(groups: list[list[float]], baseline: str) -> list[float]:
    every = [reward for rewards in groups for reward in rewards]
    means = [statistics.fmean(rewards if baseline == "group" else every) for rewards in groups for _ in rewards]
    left = [reward - mean for reward, mean in zip(every, means, strict=True)]
    return [value / (statistics.pstdev(left) + 1e-6) for value in left]


def gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The double sum of the paper."""
    steps = len(rewards)
    after = [*values[1:], 0.0]
    delta = [rewards[t] + gamma * after[t] - values[t] for t in range(steps)]
    return [sum((gamma * lam) ** k * delta[t + k] for k in range(steps - t)) for t in range(steps)]


def gigpo(
    observations: list[list[str]], rewards: list[list[float]], normalise: str, gamma: float, omega: float
) -> list[list[float]]:
    """Per member and turn, given what each turn saw and earned."""
    found = []
    episodes = advantages([sum(member) for member in rewards], normalise)

    def led_to(member: int, turn: int) -> float:
        return sum(gamma**k * reward for k, reward in enumerate(rewards[member][turn:]))

    for m, member in enumerate(observations):
        found.append([])
        for t, seen in enumerate(member):
            alike = [(i, j) for i, other in enumerate(observations) for j, o in enumerate(other) if o == seen]
            values = [led_to(i, j) for i, j in alike]
            step = advantages(values, normalise)[alike.index((m, t))]
            found[-1].append(episodes[m] + omega * step)
    return found


# ------------------------------------------------------------------------------------------------ objectives


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def surrogate(ratio: float, advantage: float, low: float, high: float, dual: float | None = None) -> float:
    """PPO's objective for one token (to be maximised)."""
    value = min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)
    if dual is not None and advantage < 0:
        value = max(value, dual * advantage)
    return value


def ppo(d: Data, t: int, i: int, c: Any) -> float:
    ratio = math.exp(d.new[t][i] - d.old(c.denominator)[t][i])
    return -surrogate(ratio, d.advantage[t][i], c.clip_low, c.clip_high, c.dual_clip)


def decoupled_ppo(d: Data, t: int, i: int, c: Any) -> float:
    weight = math.exp(d.before[t][i] - d.behaviour[t][i])
    if c.weight_cap is not None:
        weight = min(weight, c.weight_cap)
    return -weight * surrogate(math.exp(d.new[t][i] - d.before[t][i]), d.advantage[t][i], c.clip_low, c.clip_high)


def gspo(d: Data, t: int, i: int, c: Any) -> float:
    gaps = [new - old for new, old in zip(d.new[t], d.old(c.denominator)[t], strict=True)]
    return -surrogate(math.exp(statistics.fmean(gaps)), d.advantage[t][i], c.clip_low, c.clip_high)


def gspo_token(d: Data, t: int, i: int, c: Any) -> float:
    """The same where advantages or factors differ within a trajectory: its ratio, with the token's own gradient."""
    gaps = [fixed - old for fixed, old in zip(d.fixed[t], d.old(c.denominator)[t], strict=True)]
    ratio = math.exp(statistics.fmean(gaps)) * math.exp(d.new[t][i] - d.fixed[t][i])
    return -surrogate(ratio, d.advantage[t][i], c.clip_low, c.clip_high)


def tis(d: Data, t: int, i: int, c: Any) -> float:
    weight = clip(math.exp(d.fixed[t][i] - d.old(c.denominator)[t][i]), c.weight_low, c.weight_high)
    return -weight * d.advantage[t][i] * d.new[t][i]


def cispo(d: Data, t: int, i: int, c: Any) -> float:
    ratio, a = math.exp(d.fixed[t][i] - d.old(c.denominator)[t][i]), d.advantage[t][i]
    weight = clip(ratio, 1 - c.clip_low, 1 + c.clip_high)
    if c.unified_mask and ((a > 0 and ratio > 1 + c.clip_high) or (a < 0 and ratio < 1 - c.clip_low)):
        weight = 0.0
    return -weight * a * d.new[t][i]


def topr(d: Data, t: int, i: int, c: Any) -> float:
    a = d.advantage[t][i]
    if a > 0:
        return -c.positive_weight * a * d.new[t][i]
    weight = clip(math.exp(d.fixed[t][i] - d.old(c.denominator)[t][i]), 0.0, 1.0)
    return -c.negative_weight * weight * a * d.new[t][i]


def kimi(d: Data, t: int, i: int, c: Any) -> float:
    gap = d.new[t][i] - d.old(c.denominator)[t][i]
    return -(d.advantage[t][i] * d.new[t][i] - c.tau / 2 * gap**2)


OBJECTIVES = {f.__name__: f for f in (ppo, decoupled_ppo, gspo, tis, cispo, topr, kimi)}
TOKEN_OBJECTIVES = OBJECTIVES | {"gspo": gspo_token}


def mismatch_factor(d: Data, t: int, i: int, m: Any) -> float:
    if m.type == "none":
        return 1.0
    gaps = [before - behaviour for before, behaviour in zip(d.before[t], d.behaviour[t], strict=True)]
    mine = [gap for gap, segment in zip(gaps, d.segments[t], strict=True) if segment == d.segments[t][i]]
    log_weight = {
        "token": gaps[i],
        "segment": statistics.fmean(mine),
        "geometric": statistics.fmean(gaps),
        "sequence": sum(gaps),
    }[m.level]
    weight = math.exp(log_weight)
    return min(weight, m.upper) if m.type == "weight" else float(m.lower <= weight <= m.upper)


# ------------------------------------------------------------------------------------------------ the whole loss


def kl(new: float, reference: float) -> float:
    return math.exp(reference - new) - (reference - new) - 1


def aggregate(losses: Tokens, aggregation: str) -> float:
    """One number from the token losses of each trajectory."""
    if aggregation == "token":
        return statistics.fmean(loss for trajectory in losses for loss in trajectory)
    return statistics.fmean(statistics.fmean(trajectory) for trajectory in losses)


def loss(d: Data, c: Any, m: Any, reference: Tokens, entropy: Tokens) -> float:
    objectives = OBJECTIVES if m.type == "none" else TOKEN_OBJECTIVES
    terms = [
        [
            mismatch_factor(d, t, i, m) * objectives[c.type](d, t, i, c)
            + c.kl_coefficient * kl(d.new[t][i], reference[t][i])
            - c.entropy_coefficient * entropy[t][i]
            for i in range(len(d.new[t]))
        ]
        for t in range(len(d.new))
    ]
    return aggregate(terms, c.aggregation)


def value_loss(new: float, old: float, returns: float, limit: float | None) -> float:
    if limit is None:
        return (new - returns) ** 2 / 2
    return max((new - returns) ** 2, (clip(new, old - limit, old + limit) - returns) ** 2) / 2
