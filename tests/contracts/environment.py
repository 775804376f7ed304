"""What every environment owes its player: the rules that users can run on theirs, and how errors come out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest

from rollweave.environments.adapt import adapt
from rollweave.environments.conformance import RULES, Subject
from rollweave.environments.isolation import IsolatedEnvironment
from rollweave.environments.protocol import HasScriptedAction
from rollweave.errors import EnvironmentFailed

Make = Callable[[], Any]


class EnvironmentUnderTest(Protocol):
    """How one kind of environment is made."""

    data: Mapping[str, Any]
    """The row of the task that it is reset with."""

    def opened(self) -> AbstractAsyncContextManager[Make]:
        """Gives a function that makes a fresh one at each call, as long as the block lasts."""
        ...


class RaisingUnderTest(Protocol):
    """How a class of the user's, which raises ValueError at the action `my fault`, is made into an environment."""

    def opened(self) -> AbstractAsyncContextManager[Make]: ...


def as_environment(made: Any) -> HasScriptedAction:
    return made if isinstance(made, IsolatedEnvironment) else adapt(made)


async def what_the_class_raises_is_its_own_failure(make: Make) -> None:
    environment = as_environment(make())
    await environment.reset(1, {})
    with pytest.raises(EnvironmentFailed, match=r"ValueError: my fault"):
        await environment.step("my fault")
    await environment.close()


async def after_an_error_the_next_episode_can_be_played(make: Make) -> None:
    environment = as_environment(make())
    for _ in range(2):
        await environment.reset(1, {})
        with pytest.raises(EnvironmentFailed):
            await environment.step("my fault")
    await environment.close()


async def its_siblings_go_on(make: Make) -> None:
    one, other, alone = (as_environment(make()) for _ in range(3))
    for environment in (one, other, alone):
        await environment.reset(1, {})
    with pytest.raises(EnvironmentFailed):
        await other.step("my fault")
    assert await one.step("go on") == await alone.step("go on")
    for environment in (one, other, alone):
        await environment.close()


Rule = Callable[[Subject], Awaitable[None]]
ErrorBehaviour = Callable[[Make], Awaitable[None]]

BEHAVIOURS: tuple[Rule, ...] = RULES
ERRORS: tuple[ErrorBehaviour, ...] = (
    what_the_class_raises_is_its_own_failure,
    after_an_error_the_next_episode_can_be_played,
    its_siblings_go_on,
)


def check_environment(rule: Rule, kind: EnvironmentUnderTest) -> None:
    async def main() -> None:
        async with kind.opened() as make:
            await rule(Subject(make, seed=5, data=dict(kind.data)))

    asyncio.run(main())


def check_errors(behaviour: ErrorBehaviour, kind: RaisingUnderTest) -> None:
    async def main() -> None:
        async with kind.opened() as make:
            await behaviour(make)

    asyncio.run(main())
