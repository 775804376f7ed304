"""The reward of prompts.yaml: the share of an answer that is vowels."""

from __future__ import annotations

from rollweave import Trajectory


def vowels(trajectory: Trajectory) -> float:
    answer = trajectory.turns[-1].text
    return sum(character in "aeiou" for character in answer) / max(1, len(answer))
