"""Generalised advantage estimation over the sampled tokens of a trajectory, and the value head that it needs.

The head is one linear layer on the hidden state that predicts a token: it gives the value of the state *before* that
token. Observation tokens come from the environment and are not steps of the agent, so the state after a turn's last
token is the state before the next turn's first token. The state after the last sampled token has value 0, also in
truncated episodes.

The head belongs to the trainer. It is saved with the optimiser and is never part of the weights that engines get.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rollweave.config.training import GAEAdvantage
from rollweave.training.advantages import deviation, standardised, token_rewards
from rollweave.training.packing import PackedRow
from rollweave.trajectory import Batch


def value_head(hidden: int) -> torch.nn.Linear:
    """Make a value head with all weights 0, so that a new head needs no randomness."""
    head = torch.nn.Linear(hidden, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def credit(rows: Sequence[PackedRow], batch: Batch, config: GAEAdvantage) -> None:
    """Give the rows, which already have the head's values, their advantages and the returns to train the head on."""
    for row, trajectory in zip(rows, batch.trajectories(), strict=True):
        assert row.values is not None, "recorded before the first update"
        row.advantage = gae(token_rewards(trajectory), row.values, config.gamma, config.lam)
        row.returns = [advantage + value for advantage, value in zip(row.advantage, row.values, strict=True)]
    if config.normalise == "std":
        whitened = iter(standardised([a for row in rows for a in row.advantage], "std"))
        for row in rows:
            row.advantage = [next(whitened) for _ in row.advantage]


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """The advantage of each sampled token: the discounted sum of the value head's errors from that token on."""
    found: list[float] = []
    following, advantage = 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        error = reward + gamma * following - value
        advantage = error + gamma * lam * advantage
        following = value
        found.append(advantage)
    return found[::-1]


def value_loss(new: Tensor, old: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Half the squared error per token. With `clip`: the larger of the errors of the value and of the clipped value."""
    error = (new - returns) ** 2
    if clip is not None:
        held = old + (new - old).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns) ** 2)
    return 0.5 * error


def explained_variance(values: Sequence[float], returns: Sequence[float]) -> float:
    """1 if the head predicted the returns exactly, 0 if it was no better than a constant, below 0 if it was worse."""
    spread = deviation(returns)
    if spread <= 1e-12:
        return 0.0
    return 1.0 - (deviation([r - v for r, v in zip(returns, values, strict=True)]) / spread) ** 2
