"""Where a trajectory's reward falls due: step rewards with their turn, everything else at the end.

Whatever is done with them, a trajectory's rewards always add up to `Trajectory.reward`.
"""

from __future__ import annotations

from rollweave.trajectory import Trajectory


def answer_lengths(trajectory: Trajectory) -> list[int]:
    """Sampled tokens of each turn. 0: the episode was cut off before an answer."""
    return [sum(len(span.tokens) for span in turn.answer if span.sampled) for turn in trajectory.turns]


def turn_rewards(trajectory: Trajectory) -> list[float]:
    """The reward of each turn; the last one also gets what the reward functions gave to the whole episode."""
    steps = [turn.reward for turn in trajectory.turns]
    steps[-1] += trajectory.reward - sum(steps)
    return steps


def turn_returns(trajectory: Trajectory, gamma: float) -> list[float]:
    """What each turn led to: its reward and the later ones, discounted per turn."""
    found: list[float] = []
    following = 0.0
    for reward in reversed(turn_rewards(trajectory)):
        following = reward + gamma * following
        found.append(following)
    return found[::-1]


def token_rewards(trajectory: Trajectory) -> list[float]:
    """The reward of each sampled token: that of a turn stands at its last token.

    That of a turn without an answer waits for the next one that has one; at the end, it goes to the last token.
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
