"""Defines what an environment is.

The smallest useful environment is a class with `reset` and `step`; both may be plain or `async`:

    class Guess:
        def reset(self, seed): self.number = seed % 10; return "Guess a digit."
        def step(self, action): return "", float(action.strip() == str(self.number)), True

`reset` returns an observation (a string, or chat messages); `step` returns a `StepResult`, a tuple
`(observation, reward, done)` or gymnasium's five-tuple. `adapt` turns all of these into `Environment`.
An environment may always raise: that counts as an infrastructure failure, is retried with a new environment, and never
becomes a reward.

A class may declare two more things:

    deterministic = True                        # same seed and actions, same observations: a lost episode is replayed
    def scripted_action(self, rng): ...         # a random legal action: for the warm start and `rollweave env check`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rollweave.tasks import Task

Message = Mapping[str, str]
"""One chat message: {"role": "user", "content": "..."}."""

Observation = str | list[Message]
"""What the agent sees. A string is one user message."""


@dataclass(slots=True)
class StepResult:
    """What a step returns."""

    observation: Observation
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    """Whether the environment stopped the episode before its end, for example at a time limit."""
    info: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Environment(Protocol):
    """Plays one episode at a time, called from asyncio. `reset` may be called again after an episode ends."""

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        """Start the episode that this seed (and the task's data row) describes."""
        ...

    async def step(self, action: str) -> StepResult: ...

    async def close(self) -> None: ...


@runtime_checkable
class HasScriptedAction(Environment, Protocol):
    """An environment that can also propose a legal action; `adapt` and process isolation return this kind."""

    async def scripted_action(self, seed: int) -> str:
        """A random legal action in the present state, drawn with this seed."""
        ...


MakeEnvironment = Callable[[Task], HasScriptedAction]
"""Makes a new environment for a task: `EnvironmentFactory` (in this process) or `EnvironmentPool` (in others)."""
