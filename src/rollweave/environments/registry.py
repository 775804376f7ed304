"""Makes environments and task sources from the environment section of a job.

`EnvironmentFactory` is sent to other processes. So it holds configuration and no environments, and makes a new
environment for each task, by the environment name in the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rollweave.config.environments import (
    EnvironmentConfig,
    FrozenLakeConfig,
    MixtureConfig,
    PromptsConfig,
    PythonEnvironmentConfig,
    SingleEnvironment,
    task_names,
)
from rollweave.environments.adapt import adapt
from rollweave.environments.frozen_lake import FrozenLake
from rollweave.environments.protocol import HasScriptedAction, Observation, StepResult
from rollweave.errors import ConfigError, EnvironmentFailed
from rollweave.seeds import derive
from rollweave.targets import blame, load_target, nearest
from rollweave.tasks import Mixture, RowSource, SeedSource, Task, TaskSource, read_rows


@dataclass(eq=False)
class Prompts:
    """Shows the prompt of the task's row; one answer ends the episode. Its own reward is 0: reward functions read
    `trajectory.task.data`."""

    deterministic: ClassVar[bool] = True
    column: str = "prompt"

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        prompt: Observation = data[self.column]
        return prompt

    async def step(self, action: str) -> StepResult:
        return StepResult("", done=True)


def make(config: SingleEnvironment, base: Path) -> HasScriptedAction:
    """Make a new environment of this configuration; `base` is the folder of the job file."""
    match config:
        case FrozenLakeConfig() as lake:
            return adapt(FrozenLake(lake.map, lake.size, lake.slippery, lake.instructions, lake.map_every_turn))
        case PromptsConfig():
            return adapt(Prompts(config.prompt))
        case PythonEnvironmentConfig():
            return build(load_target(config.target, base), config.arguments, config.target)


def build(target: Any, arguments: Mapping[str, Any], name: str) -> HasScriptedAction:
    """Call a class (or a function that returns an environment) and adapt the result."""
    if not callable(target):
        raise ConfigError(f"{name} is a {type(target).__name__}: name a class, or a function that makes an environment")
    try:
        made = target(**arguments)
    except (Exception, SystemExit) as error:  # the boundary to a user's constructor
        given = ", ".join(arguments) or "none"
        message = f"{name} could not be made (environment.arguments: {given}): {blame(error)}"
        raise EnvironmentFailed(message) from error
    return adapt(made)


def members(config: EnvironmentConfig) -> dict[str, SingleEnvironment]:
    """The environments of a job, by the environment name in their tasks."""
    if not isinstance(config, MixtureConfig):
        return {config.type: config}
    named: dict[str, SingleEnvironment] = {}
    for name, member in zip(task_names(config), config.of, strict=True):
        if name in named:
            raise ConfigError(f"environment.of: two members are called {name!r}: give each a `name` of its own")
        named[name] = member.environment
    return named


def turn_limits(config: EnvironmentConfig) -> dict[str, int]:
    """By task: the limit of turns, where it has one of its own."""
    if not isinstance(config, MixtureConfig):
        return {}
    limits = {name: member.max_turns for name, member in zip(task_names(config), config.of, strict=True)}
    return {name: limit for name, limit in limits.items() if limit is not None}


def source(config: EnvironmentConfig, seed: int, base: Path) -> TaskSource:
    """Make the source of the job's tasks. The seed determines their order."""
    sources = [_single_source(name, member, seed, base) for name, member in members(config).items()]
    if not isinstance(config, MixtureConfig):
        return sources[0]
    return Mixture(sources, [member.weight for member in config.of], derive(seed, "tasks"))


def _single_source(name: str, config: SingleEnvironment, seed: int, base: Path) -> TaskSource:
    own = derive(seed, "tasks", name)
    if isinstance(config, PromptsConfig):
        return RowSource(name, _prompt_rows(base / config.file, config.prompt), own, config.held_out)
    return SeedSource(name, own, config.levels)


def _prompt_rows(path: Path, column: str) -> list[dict[str, Any]]:
    rows = read_rows(path)
    if not rows:
        raise ConfigError(f"{path}: no rows; add at least one task")
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(column), str | list):
            fix = nearest(column, row) if column not in row else "; it must hold text or a list of chat messages"
            raise ConfigError(f"{path}: row {number} has no prompt in column {column!r}{fix}")
    return rows


@dataclass(frozen=True)
class EnvironmentFactory:
    """Makes the environment that a task names. It is picklable, so that it can be sent to the hosts."""

    makers: Mapping[str, Callable[[], HasScriptedAction]]

    def __call__(self, task: Task) -> HasScriptedAction:
        if task.environment not in self.makers:
            raise ConfigError(f"no environment is called {task.environment!r}{nearest(task.environment, self.makers)}")
        return self.makers[task.environment]()

    @classmethod
    def from_config(cls, config: EnvironmentConfig, base: Path) -> EnvironmentFactory:
        return cls({name: partial(make, member, base.resolve()) for name, member in members(config).items()})


def maker(target: Callable[..., Any]) -> Callable[[], HasScriptedAction]:
    """Makes environments of a class or function that is given in Python and not named in a file."""
    return partial(build, target, {}, getattr(target, "__qualname__", repr(target)))
