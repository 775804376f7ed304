"""Scripted episodes: random legal actions, for the warm start of a policy made from nothing.

They teach the format of the conversation, not the game: what an action looks like, and what comes after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rollweave.environments.protocol import MakeEnvironment, Observation
from rollweave.seeds import derive
from rollweave.tasks import Task

Episode = list[tuple[Observation, str]]
"""What was seen, and what was answered, turn by turn."""


def play_scripted(factory: MakeEnvironment, tasks: Iterable[Task], max_turns: int, seed: int) -> list[Episode]:
    """One episode per task. ConfigError if the environment has no `scripted_action`."""
    return asyncio.run(play_scripted_async(factory, tasks, max_turns, seed))


async def play_scripted_async(
    factory: MakeEnvironment, tasks: Iterable[Task], max_turns: int, seed: int
) -> list[Episode]:
    """The same, for callers inside an event loop."""
    return [
        await _play(factory, task, max_turns, derive(seed, "scripted", number)) for number, task in enumerate(tasks)
    ]


async def _play(factory: MakeEnvironment, task: Task, max_turns: int, seed: int) -> Episode:
    environment = factory(task)
    episode: Episode = []
    try:
        observation = await environment.reset(task.seed, task.data)
        for turn in range(max_turns):
            action = await environment.scripted_action(derive(seed, turn))
            episode.append((observation, action))
            result = await environment.step(action)
            if result.done or result.truncated:
                break
            observation = result.observation
    finally:
        await environment.close()
    return episode
