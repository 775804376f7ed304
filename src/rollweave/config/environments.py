"""The environment section of a job: which environment the agent acts in, and where its tasks come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rollweave.config.base import FileName, NonNegative, PlainText, Section, Target


class LatencyConfig(Section):
    """Makes every reset and step slower, for benchmarks: the extra time has a normal distribution, cut at 0."""

    mean: NonNegative
    """Seconds."""
    std: NonNegative = 0.0
    """Seconds."""


Latency = Annotated[
    LatencyConfig | None,
    Field(description="Extra seconds per call, to imitate a slow environment; none: no extra time."),
]


class FrozenLakeConfig(Section):
    """Gymnasium's FrozenLake as a text agent of 5 to 30 turns."""

    type: Literal["frozen_lake"]
    map: Literal["random", "fixed"] = "random"
    """`random`: a new map per task, held-out maps for evaluation. `fixed`: gymnasium's own map."""
    size: Literal[4, 8] = 4
    slippery: bool = False
    instructions: bool = False
    """Begin with the rules in words. A real LLM needs them; a tiny policy learns the format in its warm start."""
    map_every_turn: bool = False
    """Show the whole map in every turn. The squares around the player are always shown, the map always at the start."""
    levels: PositiveInt | None = None
    """Number of different training tasks; none: every task has a new map."""
    latency: Latency = None


class PromptsConfig(Section):
    """Single-turn prompts from a file, scored by a reward function."""

    type: Literal["prompts"]
    file: FileName
    """A .jsonl or .parquet file with one task per row."""
    prompt: str = "prompt"
    """The column that holds the prompt: a string, or a list of chat messages."""
    held_out: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the rows kept for evaluation."""
    latency: Latency = None


class PythonEnvironmentConfig(Section):
    """Your own class with `reset` and `step`."""

    type: Literal["python"]
    target: Target
    """`file.py:Class`, or `package.module:Class`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Passed to the class as keyword arguments."""
    levels: PositiveInt | None = None
    """Number of different training tasks; none: every task has a new seed."""
    latency: Latency = None


def environment_from_text(text: str) -> dict[str, str]:
    """The `environment` section that a plain text stands for."""
    return {"type": "python", "target": text} if ":" in text else {"type": text}


_IN_SHORT = PlainText(environment_from_text, "frozen_lake or file.py:Class")

SingleEnvironment = Annotated[
    FrozenLakeConfig | PromptsConfig | PythonEnvironmentConfig, Field(discriminator="type"), _IN_SHORT
]


class MixtureMember(Section):
    """One environment of a mixture."""

    environment: SingleEnvironment
    weight: PositiveFloat = 1.0
    name: str = ""
    """The name of its tasks; default: the environment's type."""
    max_turns: PositiveInt | None = None
    """Instead of `rollout.max_turns`, for these tasks; none: that."""


class MixtureConfig(Section):
    """Several environments, drawn by weight."""

    type: Literal["mixture"]
    of: Annotated[tuple[MixtureMember, ...], Field(min_length=2)]


EnvironmentConfig = Annotated[
    FrozenLakeConfig | PromptsConfig | PythonEnvironmentConfig | MixtureConfig, Field(discriminator="type"), _IN_SHORT
]


def task_names(config: EnvironmentConfig) -> list[str]:
    """The names of the tasks of a job: those of its environments."""
    if not isinstance(config, MixtureConfig):
        return [config.type]
    return [member.name or member.environment.type for member in config.of]
