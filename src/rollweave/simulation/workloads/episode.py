"""An episode as the workload writes it: what each turn shows, how long its answer is, how long the world takes.

All of it is drawn when the episode begins, from one generator that the task and the number of the attempt fix, so
every mode and every cluster plays the same episodes. A workload is tasks drawn by weight, and for each attempt an
episode.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from random import Random
from typing import Protocol

from rollweave.config.workload import Constant, LogNormal, TaskModel
from rollweave.seeds import generator
from rollweave.simulation.draws import Draw, count, sampler
from rollweave.tasks import Mixture, SeedSource, Task, TaskSource
from rollweave.trajectory import Trajectory

NEVER = float("inf")
"""A call that takes so long hangs until its deadline."""


@dataclass(slots=True)
class EpisodeScript:
    reset_seconds: float
    observations: list[int]
    """Tokens shown before each answer."""
    answers: list[int]
    step_seconds: list[float]
    """After each answer."""
    reward: float
    failing_step: int | None = None
    """The call that raises: -1 is the reset."""


class EpisodeModel:
    """Draws the episodes of one kind of task."""

    def __init__(self, task: TaskModel) -> None:
        self.task = task
        self._turns = sampler(task.turns)
        self._prompt = sampler(task.prompt_tokens)
        self._observation = sampler(task.observation_tokens)
        self._answer, self._of_task = _split(task)
        self._reset = sampler(task.reset_seconds)
        step, io = sampler(task.step_seconds), sampler(task.io_seconds)
        self._step: Draw = lambda rng: step(rng) + io(rng)
        self._image = sampler(task.image_seconds)
        self.reward_seconds = sampler(task.reward_seconds)

    def draw(self, seed: int, instance: int) -> EpisodeScript:
        """The `instance`-th episode of the task with this seed: one per member, then one per retry."""
        rng, common = generator(seed, instance), generator(seed, "task")
        # The prompt belongs to the task: all members see the same one.
        prompt = count(self._prompt, common)
        task, turns = self.task, count(self._turns, common if self.task.same_turns else rng)
        observations = [prompt, *(count(self._observation, rng) for _ in range(turns - 1))]
        answer = self._answer if self._of_task is None else self._of_task(common)
        answers = [count(answer, rng) for _ in range(turns)]
        steps = [self._step(rng) for _ in range(turns)]
        reset = self._reset(rng)
        if rng.random() >= task.image_cache_hit_rate:
            reset += self._image(rng)
        reward = float(rng.random() < task.success_rate)
        episode = EpisodeScript(reset, observations, answers, steps, reward)
        self._misfortune(episode, rng)
        return episode

    def _misfortune(self, episode: EpisodeScript, rng: Random) -> None:
        task = self.task
        draw = rng.random()
        if draw < task.reset_hang_rate:
            episode.reset_seconds = NEVER
        elif draw < task.reset_hang_rate + task.reset_failure_rate:
            episode.failing_step = -1
        trouble = task.step_hang_rate + task.step_failure_rate
        if not trouble:
            return
        for place in range(len(episode.step_seconds)):
            draw = rng.random()
            if draw < task.step_hang_rate:
                episode.step_seconds[place] = NEVER
            elif draw < trouble and episode.failing_step is None:
                episode.failing_step = place


def _split(task: TaskModel) -> tuple[Draw, Callable[[Random], Draw] | None]:
    """How answers' lengths are drawn, and, where members are alike, how that comes from the task's own generator."""
    lengths = task.answer_tokens
    if not task.alike or not isinstance(lengths, LogNormal):
        return sampler(lengths), None
    own = sampler(lengths.model_copy(update={"sigma": lengths.sigma * sqrt(1 - task.alike), "low": 0.0, "high": None}))
    shared, low, high = lengths.sigma * sqrt(task.alike), lengths.low, inf if lengths.high is None else lengths.high

    def of_task(common: Random) -> Draw:
        scale = exp(shared * common.gauss(0.0, 1.0))
        return lambda rng: min(high, max(low, own(rng) * scale))

    return own, of_task


class Workload(Protocol):
    """Tasks in order, and the episodes that their attempts play."""

    @property
    def source(self) -> TaskSource: ...

    def episode(self, task: Task) -> EpisodeScript:
        """The next attempt's."""
        ...

    def judged(self, task: Task) -> bool: ...

    def reward_seconds(self, trajectory: Trajectory) -> float:
        """Of the rule that scores it."""
        ...


Attempts = defaultdict[str, Iterator[int]]
"""Numbers the attempts at each task. The members of a group begin in order: the n-th is member n, or a retry."""


def weighted(weights: Mapping[str, float], seed: int) -> TaskSource:
    """Tasks of these names, drawn by weight."""
    sources = [SeedSource(name, seed) for name in weights]
    return Mixture(sources, list(weights.values()), seed) if len(sources) > 1 else sources[0]


class DrawnWorkload:
    def __init__(self, tasks: Sequence[TaskModel], seed: int) -> None:
        self._models = {task.name: EpisodeModel(task) for task in tasks}
        self.source = weighted({task.name: task.weight for task in tasks}, seed)
        self._attempts: Attempts = defaultdict(itertools.count)

    def episode(self, task: Task) -> EpisodeScript:
        return self._models[task.environment].draw(task.seed, next(self._attempts[task.id]))

    def judged(self, task: Task) -> bool:
        return self._models[task.environment].task.judged

    def reward_seconds(self, trajectory: Trajectory) -> float:
        model = self._models[trajectory.task.environment]
        if isinstance(model.task.reward_seconds, Constant):  # a generator takes longer to make than to use
            return model.task.reward_seconds.value
        return model.reward_seconds(generator(trajectory.task.seed, "reward", trajectory.id))
