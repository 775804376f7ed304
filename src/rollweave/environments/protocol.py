"""What an environment is.

The smallest useful one is a class with `reset` and `step`; both may be plain or `async`:

    class Guess:
        def reset(self, seed): self.number = seed % 10; return "Guess a digit."
        def step(self, action): return "", float(action.strip() == str(self.number)), True

`reset` returns an observation (a string, or chat messages); `step` returns a `StepResult`, a tuple
`(observation, reward, done)` or gymnasium's five-tuple. `adapt` turns all of these into `Environment`.
Raising is always allowed: it is an infrastructure failure, retried with a fresh environment, never a reward.

A class may say two more things about itself:

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
    observation: Observation
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    """The environment itself cut the episode short (a time limit, not an end)."""
    info: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Environment(Protocol):
    """One episode at a time, driven from asyncio. `reset` may be called again after an episode ends."""

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        """Start the episode this seed (and the task's data row) describes."""
        ...

    async def step(self, action: str) -> StepResult: ...

    async def close(self) -> None: ...


@runtime_checkable
class HasScriptedAction(Environment, Protocol):
    """What `adapt` and the isolation really give: an environment that can be asked for a legal action."""

    async def scripted_action(self, seed: int) -> str:
        """A random legal action in the present state, drawn with this seed."""
        ...


MakeEnvironment = Callable[[Task], HasScriptedAction]
"""A fresh environment for a task: `EnvironmentFactory` (in this process) or `EnvironmentPool` (in others)."""
