"""The workload of a simulation: its tasks with their turns, lengths, latencies and failures, as distributions.

A task begins from a preset (`simulation/workloads/presets.yaml`) or from the defaults, and the keys in the file
override it. All lengths are in tokens, all times in seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from rollweave.config.base import FileName, NonNegative, Section, Share
from rollweave.config.catalogue import NamedSection


class Constant(Section):
    """Always the same value."""

    type: Literal["constant"]
    value: NonNegative


class Uniform(Section):
    """Any value from `low` to `high`, all equally likely."""

    type: Literal["uniform"]
    low: NonNegative
    high: NonNegative

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class Normal(Section):
    """A normal distribution, cut at 0."""

    type: Literal["normal"]
    mean: NonNegative
    std: NonNegative


class LogNormal(Section):
    """A heavy-tailed distribution: most values are near the median, some far above it."""

    type: Literal["lognormal"]
    median: NonNegative
    sigma: NonNegative
    """Standard deviation of the logarithm: with 1.0 the 99th percentile is ten times the median."""
    low: NonNegative = 0.0
    high: NonNegative | None = None
    """Values below `low` or above `high` are moved to the border."""


class Empirical(Section):
    """One of these values, all equally likely; a value listed twice is twice as likely."""

    type: Literal["empirical"]
    values: Annotated[tuple[NonNegative, ...], Field(min_length=1)]


class Part(Section):
    """One distribution of a mixture."""

    weight: Annotated[float, Field(gt=0.0)]
    of: Constant | Uniform | Normal | LogNormal | Empirical = Field(discriminator="type")


class Mixed(Section):
    """One of several distributions, chosen by weight: for two peaks, or a rare long tail."""

    type: Literal["mixed"]
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]


Distribution = Annotated[Constant | Uniform | Normal | LogNormal | Empirical | Mixed, Field(discriminator="type")]


def constant(value: float) -> Constant:
    return Constant(type="constant", value=value)


NOTHING = constant(0.0)


class TaskModel(NamedSection):
    """One kind of episode."""

    name: str = "task"
    """The name of its tasks: routing, metrics and `tasks` of a pool go by it."""
    preset: str = ""
    """The preset to start from: swe-bench, webshop, frozen-lake, gem-math, gem-game, rlvr-math, rlvr-code or
    rlvr-judge."""
    weight: PositiveFloat = 1.0
    """How many of the groups it gets, relative to the other tasks."""
    turns: Distribution = constant(1)
    """Turns of an episode."""
    prompt_tokens: Distribution = constant(512)
    """Length of the first observation."""
    observation_tokens: Distribution = constant(128)
    """Length of each later observation."""
    answer_tokens: Distribution = constant(256)
    """Length of each answer, cut at `rollout.sampling.max_tokens`."""
    reset_seconds: Distribution = NOTHING
    step_seconds: Distribution = NOTHING
    reward_seconds: Distribution = NOTHING
    """How long a rule takes to score an episode. Judged tasks are scored by the scenario's judge instead."""
    judged: bool = False
    """Whether the language model of `judge` in the scenario scores the episodes."""
    success_rate: Share = 0.5
    """Share of episodes that earn reward 1."""
    same_turns: bool = False
    """Whether all members of a group take the same number of turns."""
    alike: Share = 0.0
    """How similar the members of a group are in the lengths of their answers: the share of the variance (of the
    logarithm) that belongs to the task. Only with lognormal `answer_tokens`."""
    reset_failure_rate: Share = 0.0
    """Chance that a reset fails after its time."""
    step_failure_rate: Share = 0.0
    reset_hang_rate: Share = 0.0
    """Chance that a reset never returns, so that its deadline ends it."""
    step_hang_rate: Share = 0.0
    image_seconds: Distribution = NOTHING
    """Extra time of a reset if the task's image is not in the image cache."""
    image_cache_hit_rate: Share = 1.0
    io_seconds: Distribution = NOTHING
    """Transport time of each observation from the environments' cluster."""

    @model_validator(mode="after")
    def _check_alike(self) -> TaskModel:
        if self.alike and not isinstance(self.answer_tokens, LogNormal) and not self.preset:
            raise ValueError(f"alike needs answer_tokens of type lognormal, not {self.answer_tokens.type}")
        return self


class WorkloadConfig(Section):
    """The episodes to play: tasks drawn by weight, or the trajectories of a recorded run."""

    tasks: tuple[TaskModel, ...] = ()
    trace: FileName | None = None
    """A run folder whose trajectories are played again, lengths and waits included; instead of `tasks`."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> WorkloadConfig:
        if bool(self.tasks) == bool(self.trace):
            raise ValueError("workload needs either tasks or a trace")
        return self
