"""Turns a sample of real episodes into the tasks of a simulation, with their turns, lengths and waits."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from rollweave.config.workload import Distribution, Empirical, TaskModel, constant
from rollweave.environments.protocol import MakeEnvironment
from rollweave.rewards.scorer import Scorer
from rollweave.seeds import derive
from rollweave.tasks import Task, TaskSource
from rollweave.trajectory import Trajectory

MOST_VALUES = 64
"""The most values of a distribution in the file; if there are more, evenly spaced ones are kept."""

EPISODES, STEPS = 8, 16
"""How many episodes, and steps of each, are played alone to time an environment."""


def task_models(
    trajectories: Sequence[Trajectory], waits: dict[str, tuple[float, float]], reward_seconds: float
) -> tuple[TaskModel, ...]:
    """Make one task per environment. `waits` are the environment's seconds per reset and per step."""
    by_environment: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_environment[trajectory.task.environment].append(trajectory)
    return tuple(
        _task_model(name, played, *waits.get(name, (0.0, 0.0)), reward_seconds)
        for name, played in sorted(by_environment.items())
    )


def _task_model(name: str, played: list[Trajectory], reset: float, step: float, reward_seconds: float) -> TaskModel:
    turns = [turn for trajectory in played for turn in trajectory.turns]
    later = [turn for trajectory in played for turn in trajectory.turns[1:]]
    return TaskModel(
        name=name,
        weight=float(len(played)),
        turns=empirical(len(trajectory.turns) for trajectory in played),
        prompt_tokens=empirical(len(trajectory.turns[0].observation.tokens) for trajectory in played),
        observation_tokens=empirical(len(turn.observation.tokens) for turn in later) if later else constant(1),
        answer_tokens=empirical(sum(len(span.tokens) for span in turn.answer) for turn in turns),
        reset_seconds=constant(reset),
        step_seconds=constant(step),
        reward_seconds=constant(reward_seconds),
        success_rate=fmean(trajectory.reward > 0 for trajectory in played),
    )


def empirical(values: Iterable[float]) -> Distribution:
    """Make a distribution of the values; of many values, evenly spaced ones are kept. Equal values are a constant."""
    ordered = sorted(float(value) for value in values)
    if ordered[0] == ordered[-1]:
        return constant(ordered[0])
    if len(ordered) > MOST_VALUES:
        ordered = [ordered[(2 * i + 1) * len(ordered) // (2 * MOST_VALUES)] for i in range(MOST_VALUES)]
    return Empirical(type="empirical", values=tuple(ordered))


def environment_waits(make: MakeEnvironment, tasks: TaskSource, own_process: bool) -> dict[str, tuple[float, float]]:
    """Mean seconds per reset and per step, by environment.

    For an environment in the host's process only the time that it waits counts: its computing occupies the host, which
    is measured as a whole elsewhere. For an environment in a process of its own, all of its time counts.
    """
    clock = time.perf_counter if own_process else _waited
    by_environment: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for task in (tasks.task(number) for number in range(EPISODES)):
        by_environment[task.environment].append(asyncio.run(_time_episode(make, task, clock)))
    return {
        name: (_mean([reset for reset, _ in times]), _mean([step for _, step in times]))
        for name, times in by_environment.items()
    }


def _waited() -> float:
    """A clock that advances only while this process waits."""
    return time.perf_counter() - time.process_time()


async def _time_episode(make: MakeEnvironment, task: Task, clock: Callable[[], float]) -> tuple[float, float]:
    environment = make(task)
    began = clock()
    await environment.reset(task.seed, task.data)
    reset = clock() - began
    steps = []
    for number in range(STEPS):
        action = await environment.scripted_action(derive(task.seed, number))
        began = clock()
        result = await environment.step(action)
        steps.append(clock() - began)
        if result.done or result.truncated:
            break
    await environment.close()
    return reset, _mean(steps)


def reward_seconds(scorer: Scorer, trajectories: Sequence[Trajectory]) -> float:
    """Mean seconds to score a trajectory."""
    chosen = trajectories[:32]

    async def score() -> None:
        for trajectory in chosen:
            await scorer.score(trajectory)
        await scorer.aclose()

    began = time.perf_counter()
    asyncio.run(score())
    return (time.perf_counter() - began) / len(chosen)


def _mean(values: Sequence[float]) -> float:
    """The mean, rounded to a microsecond, because smaller differences come from the clock itself."""
    return round(max(0.0, fmean(values)), 6)
