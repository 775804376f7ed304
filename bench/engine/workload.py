"""The fixed workload: who says how many tokens in which turn. Token ids come from a seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("workload.json")


@dataclass(frozen=True, slots=True)
class Turn:
    observation: list[int]
    answer: int
    """Tokens to sample: both sides ignore stop tokens and produce exactly this many useful ones."""


Trajectory = list[Turn]


def load(vocabulary: int, trajectories: int, turns: int | None = None) -> list[Trajectory]:
    """The first trajectories of the file, each cut to its first `turns` turns."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))["trajectories"][:trajectories]
    draw = random.Random(0)
    return [
        [Turn([draw.randrange(vocabulary) for _ in range(seen)], said) for seen, said in row[:turns]] for row in rows
    ]


def longest_context(workload: list[Trajectory]) -> int:
    return max(sum(len(turn.observation) + turn.answer for turn in trajectory) for trajectory in workload)


def sampled_tokens(workload: list[Trajectory]) -> int:
    return sum(turn.answer for trajectory in workload for turn in trajectory)
