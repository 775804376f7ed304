"""Turns any object with `reset` and `step` into an `Environment`, and checks everything that it returns.

This file is the boundary to user code. The values that pass it are well-formed: observations are text or chat
messages, rewards are finite. If the user's class returns anything else, or raises, the caller gets an
`EnvironmentFailed` with the class, the method, the value and the fix.
"""

from __future__ import annotations

import inspect
import random
import re
import reprlib
import sys
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from rollweave.environments.protocol import HasScriptedAction, Observation, StepResult
from rollweave.errors import ConfigError, EnvironmentFailed
from rollweave.rewards.scorer import as_number
from rollweave.targets import blame


def adapt(thing: Any) -> HasScriptedAction:
    """Make an `Environment` of a `gymnasium.Env` or of an object with `reset` and `step`, plain or async."""
    if isinstance(thing, Adapted):
        return thing
    gymnasium = sys.modules.get("gymnasium")  # without that import, the thing cannot be one of its environments
    if gymnasium is not None and isinstance(thing, gymnasium.Env):
        from rollweave.environments.gym import GymText

        return Adapted(GymText(thing), type(thing.unwrapped).__name__)
    return Adapted(thing, type(thing).__name__)


class Adapted:
    """A user's object that is called and checked through the `Environment` protocol."""

    def __init__(self, inner: Any, name: str) -> None:
        for method in ("reset", "step"):
            if not callable(getattr(inner, method, None)):
                raise ConfigError(f"{name} is not an environment: it has no method `{method}`")
        self.inner = inner
        self.name = name
        self.deterministic = bool(getattr(inner, "deterministic", False))
        self.scripted = callable(getattr(inner, "scripted_action", None))
        self._reset_arguments = _reset_style(inner.reset, name)
        self._file = inspect.getsourcefile(type(inner)) if type(inner).__module__ != "builtins" else None
        self._running = False
        self._closed = False

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        positional, named = self._reset_arguments(seed, data)
        value = await self._call("reset", *positional, **named)
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
            value = value[0]  # gymnasium's (observation, info)
        observation = self._observation("reset", value)
        self._running = True
        return observation

    async def step(self, action: str) -> StepResult:
        if not self._running:
            raise EnvironmentFailed(f"{self.name}.step: no episode is running: call reset first")
        self._running = False  # an exception below ends the episode
        result = self._result(await self._call("step", action))
        self._running = not (result.done or result.truncated)
        return result

    async def close(self) -> None:
        if not self._closed and callable(getattr(self.inner, "close", None)):
            self._closed = True
            await self._call("close")

    async def scripted_action(self, seed: int) -> str:
        if not self.scripted:
            raise ConfigError(
                f"{self.name} cannot be played by script: give it a method `scripted_action(self, rng)` that returns "
                "a random legal action, or turn the warm start off (model.warm_start.steps=0)"
            )
        action = await self._call("scripted_action", random.Random(seed))
        if not isinstance(action, str):
            raise self._wrong("scripted_action", action, "return the action as text")
        return action

    async def _call(self, method: str, *positional: Any, **named: Any) -> Any:
        try:
            value = getattr(self.inner, method)(*positional, **named)
            return await value if inspect.isawaitable(value) else value
        except EnvironmentFailed:
            raise
        except (Exception, SystemExit) as error:  # the boundary: a user's class may raise anything
            raise EnvironmentFailed(f"{self.name}.{method} raised {blame(error, self._file)}") from error

    def _result(self, value: Any) -> StepResult:
        match value:
            case StepResult():
                result = value
            case (observation, reward, done):
                result = StepResult(observation, reward, done)
            case (observation, reward, done, info):
                result = StepResult(observation, reward, done, info=info)
            case (observation, reward, done, truncated, info):
                result = StepResult(observation, reward, done, truncated, info)
            case _:
                fix = "return (observation, reward, done), a StepResult or gymnasium's five-tuple"
                raise self._wrong("step", value, fix)
        if not isinstance(result.info, Mapping):
            raise self._wrong("step", result.info, "info must be a dict", "info ")
        if (reward := as_number(result.reward)) is None:
            fix = "the reward must be a finite number; raise an exception if the environment is broken"
            raise self._wrong("step", result.reward, fix, "the reward ")
        return StepResult(
            self._observation("step", result.observation),
            reward,
            self._flag("done", result.done),
            self._flag("truncated", result.truncated),
            dict(result.info),
        )

    def _observation(self, method: str, value: Any) -> Observation:
        if isinstance(value, str) and _is_text(value):
            return value
        if isinstance(value, list) and value and all(map(_is_message, value)):
            return [{"role": message["role"], "content": message["content"]} for message in value]
        if isinstance(value, str):
            raise self._wrong(method, value, "half of a surrogate pair is not text: decode it with errors='replace'")
        fix = 'an observation is a string or a list of {"role": ..., "content": ...}'
        raise self._wrong(method, value, f"{fix}, not {type(value).__name__}")

    def _flag(self, name: str, value: Any) -> bool:
        if isinstance(value, bool | int) or type(value).__name__ in ("bool_", "bool"):  # numpy's are not bool
            return bool(value)
        raise self._wrong("step", value, f"{name} must be True or False", f"{name} ")

    def _wrong(self, method: str, value: Any, fix: str, what: str = "") -> EnvironmentFailed:
        size = f" ({len(value)} values)" if isinstance(value, tuple) else ""
        return EnvironmentFailed(f"{self.name}.{method} returned {what}{reprlib.repr(value)}{size}: {fix}")


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_text(value.get(key)) for key in ("role", "content"))


def _is_text(value: Any) -> bool:
    """Whether this is a string that a tokenizer takes: a Python string may contain half of a surrogate pair."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


ResetArguments = Callable[[int, Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _reset_style(reset: Callable[..., Any], name: str) -> ResetArguments:
    """Find out how this `reset` takes its seed: `(seed)`, `(seed, data)` or gymnasium's `(seed=..., options=...)`."""
    parameters = inspect.signature(reset).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    positional = sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    if "options" in parameters:
        return lambda seed, data: ((), {"seed": seed, "options": dict(data) or None})
    if positional >= 2 or Parameter.VAR_POSITIONAL in kinds:
        return lambda seed, data: ((seed, data), {})
    if positional == 1:
        return lambda seed, data: ((seed,), {})
    if "seed" in parameters or Parameter.VAR_KEYWORD in kinds:
        with_data = {"data"} & set(parameters)
        return lambda seed, data: ((), {"seed": seed} | dict.fromkeys(with_data, data))
    raise ConfigError(
        f"{name}.reset takes no seed: write `def reset(self, seed)`, so that the members of a group start alike"
    )
