"""Writes trajectories.jsonl: some trajectories of each step in full, for people and for the report.

The text of an observation is decoded from the tokens that the engine was given, including the marks of the chat
template. So it shows exactly what the policy saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from rollweave.observability.jsonl import Appender
from rollweave.trajectory import Span, Trajectory, Turn
from rollweave.versions import Version

Decode = Callable[[list[int]], str]


class TranscriptWriter(Appender):
    """Appends trajectories to a run folder."""

    def __init__(self, folder: Path, decode: Decode) -> None:
        super().__init__(folder / "trajectories.jsonl")
        self._decode = decode

    def write(self, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Write the trajectories chosen for train step `step`."""
        for trajectory in trajectories:
            self.append(transcript(step, trajectory, self._decode))


def transcript(step: int, trajectory: Trajectory, decode: Decode) -> dict[str, Any]:
    return {
        "step": step,
        "id": trajectory.id,
        "group": trajectory.group,
        "member": trajectory.member,
        "task": trajectory.task.id,
        "seed": trajectory.task.seed,
        "outcome": trajectory.outcome,
        "cause": trajectory.cause,
        "reward": trajectory.reward,
        "rewards": trajectory.rewards,
        "reward_parts": trajectory.info.get("reward_parts", {}),
        "staleness": step - trajectory.oldest_version,
        "tokens": trajectory.length,
        "turns": [_turn(turn, decode) for turn in trajectory.turns],
    }


def _turn(turn: Turn, decode: Decode) -> dict[str, Any]:
    return {
        "observation": decode(turn.observation.tokens.tolist()),
        "observation_tokens": len(turn.observation.tokens),
        "answer": turn.text,
        "finish": turn.finish,
        "reward": turn.reward,
        "versions": _versions(turn.answer),
        "seconds": {"generate": turn.generate_seconds, "environment": turn.environment_seconds},
    }


def _versions(spans: list[Span]) -> list[list[int]]:
    """The parts of an answer as [version, number of tokens], which shows where the policy changed within it."""
    sampled = ((Version(span.version).number, len(span.tokens)) for span in spans if span.version is not None)
    return [[version, sum(n for _, n in run)] for version, run in groupby(sampled, key=lambda pair: pair[0])]


def spread(trajectories: Iterable[Trajectory], count: int) -> list[Trajectory]:
    """Choose up to `count` trajectories from best to worst reward, including both, so that a person can compare."""
    ranked = sorted(trajectories, key=lambda t: (-t.reward, t.group, t.member))
    if count <= 1 or len(ranked) <= count:
        return ranked[: max(count, 0)]
    return [ranked[round(i * (len(ranked) - 1) / (count - 1))] for i in range(count)]
