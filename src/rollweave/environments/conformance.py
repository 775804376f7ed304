"""Tests whether an environment keeps the rules that every caller relies on. You can run it on your own:

from rollweave.environments.conformance import check_conformance

def test_my_environment():
    check_conformance(MyEnvironment)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollweave.environments.adapt import adapt
from rollweave.environments.check import arbitrary_action
from rollweave.environments.isolation import IsolatedEnvironment
from rollweave.environments.protocol import HasScriptedAction, Observation, StepResult
from rollweave.errors import ConfigError, EnvironmentFailed
from rollweave.seeds import derive, generator


def check_conformance(
    make: Callable[[], Any], *, seed: int = 0, data: Mapping[str, Any] | None = None, max_turns: int = 100
) -> None:
    """Raise `EnvironmentFailed` with all broken rules, if any. `make` returns a new environment at each call."""
    if problems := asyncio.run(_broken_rules(Subject(make, seed, dict(data or {}), max_turns))):
        raise EnvironmentFailed("\n".join(problems))


async def _broken_rules(subject: Subject) -> list[str]:
    problems = []
    for rule in RULES:
        try:
            await rule(subject)
        except (EnvironmentFailed, AssertionError) as error:
            problems.append(f"{rule.__name__.replace('_', ' ')}: {error}")
    return problems


@dataclass(slots=True)
class Subject:
    """The environment under test, with the seed and the data of its episodes."""

    make: Callable[[], Any]
    seed: int
    data: dict[str, Any] = field(default_factory=dict)
    max_turns: int = 100

    def fresh(self) -> HasScriptedAction:
        made = self.make()
        return made if isinstance(made, IsolatedEnvironment) else adapt(made)

    async def reset(self, environment: HasScriptedAction) -> Observation:
        return await environment.reset(self.seed, self.data)

    async def play(self, environment: HasScriptedAction) -> list[tuple[str, StepResult]]:
        """Play a whole episode, and return each action with its result."""
        observation = await self.reset(environment)
        episode: list[tuple[str, StepResult]] = []
        for turn in range(self.max_turns):
            action = await self._action(environment, observation, derive(self.seed, "conformance", turn))
            result = await environment.step(action)
            episode.append((action, result))
            if result.done or result.truncated:
                break
            observation = result.observation
        return episode

    async def _action(self, environment: HasScriptedAction, seen: Observation, seed: int) -> str:
        try:
            return await environment.scripted_action(seed)
        except ConfigError:  # it has no script
            return arbitrary_action(generator(seed), seen)


async def an_episode_can_be_played(subject: Subject) -> None:
    environment = subject.fresh()
    await subject.play(environment)  # the adapter checks every value on the way
    await environment.close()


async def reset_may_be_called_again(subject: Subject) -> None:
    environment = subject.fresh()
    first = await subject.reset(environment)
    again = await subject.reset(environment)
    await subject.play(environment)
    last = await subject.reset(environment)
    await environment.close()
    if getattr(environment, "deterministic", False):
        assert first == again == last, f"the same seed gave {first!r}, then {again!r}, then {last!r}"


async def deterministic_means_same_seed_same_episode(subject: Subject) -> None:
    one, other = subject.fresh(), subject.fresh()
    first, second = await subject.play(one), await subject.play(other)
    await one.close()
    await other.close()
    if getattr(one, "deterministic", False):
        for turn, (left, right) in enumerate(zip(first, second, strict=False), 1):
            assert _seen(left) == _seen(right), f"turn {turn} differs: {_seen(left)} and {_seen(right)}"
        assert len(first) == len(second), f"one episode took {len(first)} turns, the other {len(second)}"


async def a_step_after_the_end_is_refused_or_harmless(subject: Subject) -> None:
    environment = subject.fresh()
    episode = await subject.play(environment)
    action, last = episode[-1]
    if last.done or last.truncated:
        try:
            after = await environment.step(action)
        except EnvironmentFailed:
            pass  # refused
        else:
            assert after.reward == 0.0, f"a step after the end earned {after.reward}"
    await subject.reset(environment)
    await environment.close()


async def close_may_be_called_twice_and_early(subject: Subject) -> None:
    unused = subject.fresh()
    await unused.close()
    environment = subject.fresh()
    await subject.reset(environment)
    await environment.close()
    await environment.close()


def _seen(step: tuple[str, StepResult]) -> tuple[Any, ...]:
    action, result = step
    return action, result.observation, result.reward, result.done, result.truncated


RULES = (
    an_episode_can_be_played,
    reset_may_be_called_again,
    deterministic_means_same_seed_same_episode,
    a_step_after_the_end_is_refused_or_harmless,
    close_may_be_called_twice_and_early,
)
