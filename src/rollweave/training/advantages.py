"""Computes advantages: how much better a trajectory, or a turn of it, was than expected, for each sampled token.

    grpo, rloo        compared with the other members of the group, which started from the same task
    reinforce++       compared with the whole batch
    gigpo             compared with the group, and each turn with the group's turns that had the same observation
    gae               compared with the value head, token by token (`training/gae.py`, because it needs the model)

Only members that are present count: a member lost to an infrastructure failure is left out and is not a zero. Where
all rewards are equal there is nothing to compare, and the advantages are exactly zero. A trajectory's rewards, however
they are placed on turns and tokens, always add up to `Trajectory.reward`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from rollweave.config.training import GiGPOAdvantage, GRPOAdvantage, ReinforcePlusAdvantage, RLOOAdvantage
from rollweave.trajectory import Batch, Group, Trajectory

EPSILON = 1e-6
"""Added to the standard deviation, so that tiny differences in reward do not become large advantages."""

ComparedAdvantage = GRPOAdvantage | RLOOAdvantage | ReinforcePlusAdvantage | GiGPOAdvantage
"""The advantages that follow from the rewards alone."""


def batch_advantages(batch: Batch, config: ComparedAdvantage) -> list[list[float]]:
    """The advantage of each sampled token, for each trajectory in the batch's canonical order."""
    if isinstance(config, GiGPOAdvantage):
        return [tokens for group in batch.groups for tokens in gigpo(group, config)]
    each = trajectory_advantages([[member.reward for member in group.members] for group in batch.groups], config)
    return [[a] * trajectory.sampled_tokens for trajectory, a in zip(batch.trajectories(), each, strict=True)]


def trajectory_advantages(
    groups: Sequence[Sequence[float]], config: GRPOAdvantage | RLOOAdvantage | ReinforcePlusAdvantage
) -> list[float]:
    """One advantage per trajectory, from the rewards of each group."""
    match config:
        case GRPOAdvantage():
            return [a for rewards in groups for a in standardised(rewards, config.normalise)]
        case RLOOAdvantage():
            return [a for rewards in groups for a in leave_one_out(rewards)]
        case ReinforcePlusAdvantage(baseline="group"):
            centred = [a for rewards in groups for a in standardised(rewards, "none")]
            return _scaled(centred, deviation(centred))
        case ReinforcePlusAdvantage():
            return standardised([reward for rewards in groups for reward in rewards], "std")


def standardised(values: Sequence[float], normalise: str) -> list[float]:
    """Each value minus the mean, divided by the population standard deviation if `normalise` is `std`."""
    if min(values) == max(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    centred = [value - mean for value in values]
    return centred if normalise == "none" else _scaled(centred, deviation(values))


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Each reward minus the mean of the other members' rewards."""
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def gigpo(group: Group, config: GiGPOAdvantage) -> list[list[float]]:
    """For each member, the episode's advantage in its group, plus omega times each turn's among similar turns.

    Two turns of a group are similar if they answer the same observation, token for token, whatever came before it.
    """
    episodes = standardised([member.reward for member in group.members], config.normalise)
    returns = [turn_returns(member, config.gamma) for member in group.members]
    alike: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for m, member in enumerate(group.members):
        for t, turn in enumerate(member.turns):
            alike[turn.observation.tokens.tobytes()].append((m, t))
    credit = [[episode] * len(member.turns) for episode, member in zip(episodes, group.members, strict=True)]
    for places in alike.values():
        steps = standardised([returns[m][t] for m, t in places], config.normalise)
        for (m, t), step in zip(places, steps, strict=True):
            credit[m][t] += config.omega * step
    return [
        [turn for turn, length in zip(turns, answer_lengths(member), strict=True) for _ in range(length)]
        for turns, member in zip(credit, group.members, strict=True)
    ]


def deviation(values: Sequence[float]) -> float:
    """The population standard deviation."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _scaled(centred: Sequence[float], by: float) -> list[float]:
    return [value / (by + EPSILON) for value in centred]


def zero_share(batch: Batch) -> float:
    """The share of groups whose members all got the same reward, so that they teach nothing."""
    same = sum(len({member.reward for member in group.members}) <= 1 for group in batch.groups)
    return same / len(batch.groups)


def answer_lengths(trajectory: Trajectory) -> list[int]:
    """The number of sampled tokens of each turn; 0 if the episode was stopped before the answer."""
    return [sum(len(span.tokens) for span in turn.answer if span.sampled) for turn in trajectory.turns]


def turn_rewards(trajectory: Trajectory) -> list[float]:
    """The reward of each turn. The last turn also gets what the reward functions gave for the whole episode."""
    steps = [turn.reward for turn in trajectory.turns]
    steps[-1] += trajectory.reward - sum(steps)
    return steps


def turn_returns(trajectory: Trajectory, gamma: float) -> list[float]:
    """The return of each turn: its reward and the later rewards, discounted per turn."""
    backwards = accumulate(reversed(turn_rewards(trajectory)), lambda following, reward: reward + gamma * following)
    return list(backwards)[::-1]


def token_rewards(trajectory: Trajectory) -> list[float]:
    """The reward of each sampled token. A turn's reward is placed on the last token of its answer.

    The reward of a turn without an answer is placed on the next answer, or, if there is none, on the last token.
    """
    placed: list[float] = []
    waiting = 0.0
    for reward, length in zip(turn_rewards(trajectory), answer_lengths(trajectory), strict=True):
        waiting += reward
        if length:
            placed += [0.0] * (length - 1) + [waiting]
            waiting = 0.0
    placed[-1] += waiting
    return placed
