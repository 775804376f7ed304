"""Generalised advantage estimation over the sampled tokens of a trajectory, and the value head it needs.

The head is one linear layer on the hidden state that predicts a token: the value of the state *before* that token.
Observation tokens are the environment's doing and no steps of the agent: the state after a turn's last token is the
one before the next turn's first. The state after the last sampled token is worth 0, truncated episodes included.

The head belongs to the trainer. It is saved with the optimiser and never part of the weights that engines get.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rollweave.config.training import GAEAdvantage
from rollweave.training.advantages import deviation, standardised, token_rewards
from rollweave.training.packing import PackedRow
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch


def value_head(hidden: int) -> torch.nn.Linear:
    """A head that expects nothing yet: all zeros, so that a new one needs no randomness."""
    head = torch.nn.Linear(hidden, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def credit(rows: Sequence[PackedRow], batch: Batch, config: GAEAdvantage) -> Metrics:
    """Give the rows, which carry the head's values, their advantages and the returns the head should have said."""
    values: list[float] = []
    returns: list[float] = []
    for row, trajectory in zip(rows, batch.trajectories(), strict=True):
        assert row.values is not None, "looked at before the first update"
        row.advantage = gae(token_rewards(trajectory), row.values, config.gamma, config.lam)
        row.returns = [advantage + value for advantage, value in zip(row.advantage, row.values, strict=True)]
        values += row.values
        returns += row.returns
    if config.normalise == "std":
        for row, advantage in zip(rows, whitened([row.advantage for row in rows]), strict=True):
            row.advantage = advantage
    return {"value/explained_variance": explained_variance(values, returns)}


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """The advantage of each sampled token: the discounted sum of the surprises that follow it."""
    found: list[float] = []
    following, advantage = 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        surprise = reward + gamma * following - value
        advantage = surprise + gamma * lam * advantage
        following = value
        found.append(advantage)
    return found[::-1]


def whitened(advantages: Sequence[Sequence[float]]) -> list[list[float]]:
    """Mean 0 and deviation 1 over all tokens."""
    flat = iter(standardised([a for tokens in advantages for a in tokens], "std"))
    return [[next(flat) for _ in tokens] for tokens in advantages]


def value_loss(new: Tensor, old: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Half the squared error per token; clipped: the worse of the value's and of that held within `clip` of old."""
    error = (new - returns) ** 2
    if clip is not None:
        held = old + (new - old).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns) ** 2)
    return 0.5 * error


def explained_variance(values: Sequence[float], returns: Sequence[float]) -> float:
    """1: the head had foreseen the returns; 0: no better than a constant; below: worse."""
    spread = deviation(returns)
    if math.isclose(spread, 0.0, abs_tol=1e-12):
        return 0.0
    return 1.0 - (deviation([r - v for r, v in zip(returns, values, strict=True)]) / spread) ** 2
