"""A recorded run as a workload: its trajectories played again, with their lengths and waits.

A run folder keeps some of its episodes in full (`trajectories.jsonl`; `logging.transcripts_per_step` says how many).
Every attempt of the simulation plays one of them, drawn by the task's seed, so the mix of lengths, turns and
latencies is the recorded one.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

from rollweave.errors import ConfigError
from rollweave.observability.jsonl import read
from rollweave.seeds import derive
from rollweave.simulation.workloads.episode import Attempts, EpisodeScript, weighted
from rollweave.tasks import Task, TaskSource
from rollweave.trajectory import Trajectory


class RecordedWorkload:
    def __init__(self, run: Path, seed: int, tasks: TaskSource | None = None) -> None:
        """`tasks`: those of the job that was recorded; without them, tasks are drawn as often as episodes were kept."""
        self._episodes = recorded_episodes(run)
        kept = {name: float(len(them)) for name, them in self._episodes.items()}
        self.source: TaskSource = tasks or weighted(kept, seed)
        self._attempts: Attempts = defaultdict(count)

    def episode(self, task: Task) -> EpisodeScript:
        recorded = self._episodes[task.environment]
        return recorded[derive(task.seed, next(self._attempts[task.id])) % len(recorded)]

    def judged(self, task: Task) -> bool:
        return False

    def reward_seconds(self, trajectory: Trajectory) -> float:
        """A run does not record it: rewards of its kind take next to nothing."""
        return 0.0


def recorded_episodes(run: Path) -> dict[str, list[EpisodeScript]]:
    """By task: the finished episodes that the run has kept."""
    file = run / "trajectories.jsonl"
    if not file.is_file():
        raise ConfigError(f"workload.trace: {run} has no trajectories.jsonl; name the folder of a run")
    episodes: dict[str, list[EpisodeScript]] = defaultdict(list)
    for row in read(file).rows:
        if row.get("turns") and row.get("outcome") in ("finished", "truncated"):
            if "observation_tokens" not in row["turns"][0]:
                raise ConfigError(
                    f"workload.trace: {file} was recorded by an older version and does not say how long "
                    "observations were; record a run anew"
                )
            episodes[str(row["task"]).split("/")[0]].append(_episode(row))
    if not episodes:
        raise ConfigError(
            f"workload.trace: {file} holds no finished episode; record some with logging.transcripts_per_step"
        )
    return dict(episodes)


def _episode(row: dict[str, Any]) -> EpisodeScript:
    turns = row["turns"]
    answers = [sum(tokens for _, tokens in turn["versions"]) for turn in turns]
    steps = [float(turn["seconds"].get("environment", 0.0)) for turn in turns]
    return EpisodeScript(0.0, [turn["observation_tokens"] for turn in turns], answers, steps, float(row["reward"]))
