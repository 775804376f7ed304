"""Where a simulation's groups come from: tasks drawn by weight, and for each attempt an episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from rollweave.config.distributions import Constant
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


class Attempts:
    """Numbers the attempts at each task. The members of a group begin in order: the n-th is member n, or a retry."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def next(self, task: Task) -> int:
        number = self._begun[task.id]
        self._begun[task.id] = number + 1
        return number


def weighted(weights: Mapping[str, float], seed: int) -> TaskSource:
    """Tasks of these names, drawn by weight."""
    sources = [SeedSource(name, seed) for name in weights]
    return Mixture(sources, list(weights.values()), seed) if len(sources) > 1 else sources[0]


class DrawnWorkload:
    def __init__(self, tasks: Sequence[TaskModel], seed: int) -> None:
        self._models = {task.name: EpisodeModel(task) for task in tasks}
        self.source = weighted({task.name: task.weight for task in tasks}, seed)
        self._attempts = Attempts()

    def episode(self, task: Task) -> Episode:
        return self._models[task.environment].draw(task.seed, self._attempts.next(task))

    def judged(self, task: Task) -> bool:
        return self._models[task.environment].task.judged

    def reward_seconds(self, trajectory: Trajectory) -> float:
        model = self._models[trajectory.task.environment]
        if isinstance(model.task.reward_seconds, Constant):  # a generator takes longer to make than to use
            return model.task.reward_seconds.value
        return model.reward_seconds(generator(trajectory.task.seed, "reward", trajectory.id))
