"""Where a simulation's groups come from: tasks drawn by weight, and for each attempt an episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from rollweave.config.workload import TaskModel
from rollweave.seeds import generator
from rollweave.simulation.workloads.episode import Episode, EpisodeModel
from rollweave.tasks import Mixture, SeedSource, Task, TaskSource
from rollweave.trajectory import Trajectory


class Workload(Protocol):
    """Tasks in order, and the episodes that their attempts play."""

    @property
    def source(self) -> TaskSource: ...

    def episode(self, task: Task) -> Episode:
        """The next attempt's."""
        ...

    def judged(self, task: Task) -> bool: ...

    def reward_seconds(self, trajectory: Trajectory) -> float:
        """Of the rule that scores it."""
        ...


class DrawnWorkload:
    def __init__(self, tasks: Sequence[TaskModel], seed: int) -> None:
        self._models = {task.name: EpisodeModel(task) for task in tasks}
        sources = [SeedSource(task.name, seed) for task in tasks]
        weights = [task.weight for task in tasks]
        self.source: TaskSource = Mixture(sources, weights, seed) if len(sources) > 1 else sources[0]
        self._attempts: Counter[str] = Counter()

    def episode(self, task: Task) -> Episode:
        """The members of a group begin in order, so the n-th attempt at a task is its member n, or a retry."""
        instance = self._attempts[task.id]
        self._attempts[task.id] = instance + 1
        return self._models[task.environment].draw(task.seed, instance)

    def judged(self, task: Task) -> bool:
        return self._models[task.environment].task.judged

    def reward_seconds(self, trajectory: Trajectory) -> float:
        model = self._models[trajectory.task.environment]
        return model.reward_seconds(generator(trajectory.task.seed, "reward", trajectory.id))
