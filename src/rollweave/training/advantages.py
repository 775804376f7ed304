"""How much better a member did than its group: GRPO's advantage, one number per trajectory.

A group's members started from the same task, so their mean reward is the baseline. Statistics are over the members
that are present: one lost to an infrastructure failure is not a zero, it is simply not there. Where all members got
the same reward there is nothing to compare and the advantages are exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollweave.config.training import GRPOAdvantage
from rollweave.trajectory import Batch

EPSILON = 1e-6
"""Added to the standard deviation, so that tiny differences in reward are not blown up."""


def group_advantages(rewards: Sequence[float], config: GRPOAdvantage) -> list[float]:
    """Reward minus the mean, over the population standard deviation if `normalise` is `std`."""
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if config.normalise == "none":
        return centred
    deviation = math.sqrt(math.fsum(c * c for c in centred) / len(centred))
    return [c / (deviation + EPSILON) for c in centred]


def batch_advantages(batch: Batch, config: GRPOAdvantage) -> list[float]:
    """One advantage per trajectory, in the batch's canonical order."""
    rewards = ([member.reward for member in group.members] for group in batch.groups)
    return [advantage for group in rewards for advantage in group_advantages(group, config)]


def zero_share(batch: Batch) -> float:
    """The share of groups whose members all got the same reward: they teach nothing."""
    same = sum(len({member.reward for member in group.members}) <= 1 for group in batch.groups)
    return same / len(batch.groups)
