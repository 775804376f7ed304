"""Every kind of environment keeps the contract of environments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import pytest

from contracts.environment import (
    BEHAVIOURS,
    ERRORS,
    EnvironmentUnderTest,
    ErrorBehaviour,
    Make,
    Rule,
    check_environment,
    check_errors,
)
from isolation_worlds import Counter
from rollweave.environments.adapt import adapt
from rollweave.environments.frozen_lake import FrozenLake
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.registry import EnvironmentFactory, Prompts, maker
from rollweave.tasks import Task


@dataclass
class InProcess:
    make: Callable[[], Any]
    data: Mapping[str, Any] = field(default_factory=lambda: {"prompt": "2+2?"})

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Make]:
        yield self.make


@dataclass
class Isolated:
    """In child processes, two environments in each."""

    world: Callable[[], Any]
    data: Mapping[str, Any] = field(default_factory=lambda: {"prompt": "2+2?"})

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Make]:
        pool = EnvironmentPool(EnvironmentFactory({"world": maker(self.world)}), 2)
        try:
            yield lambda: pool(Task("t", "world", 0))
        finally:
            await pool.close()


class Plain:
    """A class as a user writes it: counts to three, or raises."""

    deterministic = True

    def reset(self, seed: int) -> str:
        self.count = seed
        return str(self.count)

    def step(self, action: str) -> Any:
        if action == "my fault":
            raise ValueError(action)
        self.count += 1
        return str(self.count), 0.5, self.count >= 3


class Asynchronous(Plain):
    async def reset(self, seed: int) -> str:  # type: ignore[override]
        return super().reset(seed)

    async def step(self, action: str) -> Any:
        return super().step(action)


KINDS: dict[str, EnvironmentUnderTest] = {
    "frozen-lake": InProcess(FrozenLake),
    "frozen-lake-fixed": InProcess(lambda: FrozenLake("fixed", 8)),
    "frozen-lake-slippery": InProcess(lambda: FrozenLake("random", 8, slippery=True, instructions=True)),
    "prompts": InProcess(Prompts),
    "plain-class": InProcess(Plain),
    "async-class": InProcess(Asynchronous),
    "adapted": InProcess(lambda: adapt(Plain())),
    "gymnasium": InProcess(lambda: gymnasium.make("FrozenLake-v1", render_mode="ansi")),
    "isolated-class": Isolated(Counter),
    "isolated-frozen-lake": Isolated(FrozenLake),
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_keeps_the_contract(kind: str, behaviour: Rule) -> None:
    check_environment(behaviour, KINDS[kind])


@pytest.mark.parametrize("behaviour", ERRORS, ids=lambda behaviour: behaviour.__name__)
@pytest.mark.parametrize(
    "kind", [InProcess(Plain), InProcess(Asynchronous), Isolated(Plain)], ids=["plain", "async", "isolated"]
)
def test_errors_of_a_class_come_out_as_its_own(kind: InProcess | Isolated, behaviour: ErrorBehaviour) -> None:
    check_errors(behaviour, kind)
