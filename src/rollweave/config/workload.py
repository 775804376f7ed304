"""Simulated work: tasks with their turns, lengths, latencies and failures, and how they are mixed.

A task begins from a preset (`simulation/workloads/presets.yaml`) or from nothing, and whatever the file says overrides
it. All lengths are tokens, all times seconds.

Distributions a file can name: lengths, turns and latencies of simulated work.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from rollweave.config.base import Section
from rollweave.config.overrides import FileName

NonNegative = Annotated[float, Field(ge=0.0)]


class Constant(Section):
    """Always the same."""

    type: Literal["constant"]
    value: NonNegative


class Uniform(Section):
    """Anything from `low` to `high`, equally likely."""

    type: Literal["uniform"]
    low: NonNegative
    high: NonNegative

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class Normal(Section):
    """Normal, cut at 0."""

    type: Literal["normal"]
    mean: NonNegative
    std: NonNegative


class LogNormal(Section):
    """Heavy-tailed: most draws lie near the median, some far above it."""

    type: Literal["lognormal"]
    median: NonNegative
    sigma: NonNegative
    """Of the logarithm: 1.0 puts the 99th percentile at ten times the median."""
    low: NonNegative = 0.0
    high: NonNegative | None = None
    """Draws outside are moved to the border."""


class Empirical(Section):
    """One of these values, each as likely as it is often."""

    type: Literal["empirical"]
    values: Annotated[tuple[NonNegative, ...], Field(min_length=1)]


class Part(Section):
    weight: Annotated[float, Field(gt=0.0)]
    of: Constant | Uniform | Normal | LogNormal | Empirical = Field(discriminator="type")


class Mixed(Section):
    """One of several distributions, drawn by weight: two humps, or a rare long tail."""

    type: Literal["mixed"]
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]


Distribution = Annotated[Constant | Uniform | Normal | LogNormal | Empirical | Mixed, Field(discriminator="type")]


def constant(value: float) -> Constant:
    return Constant(type="constant", value=value)


def uniform(low: float, high: float) -> Uniform:
    return Uniform(type="uniform", low=low, high=high)


def normal(mean: float, std: float) -> Normal:
    return Normal(type="normal", mean=mean, std=std)


def lognormal(median: float, sigma: float, low: float = 0.0, high: float | None = None) -> LogNormal:
    return LogNormal(type="lognormal", median=median, sigma=sigma, low=low, high=high)


NOTHING = constant(0.0)


Chance = Annotated[float, Field(ge=0.0, le=1.0)]


class TaskModel(Section):
    """One kind of episode."""

    name: str = "task"
    """The tag that routing sees."""
    preset: str = ""
    """Begin from this preset: swe-bench, webshop, frozen-lake, gem-math, gem-game, rlvr-math, rlvr-code, rlvr-judge."""
    weight: PositiveFloat = 1.0
    """Its share of the groups, against the other tasks."""
    turns: Distribution = constant(1)
    """Answers of an episode."""
    prompt_tokens: Distribution = constant(512)
    """The first observation."""
    observation_tokens: Distribution = constant(128)
    """Each later one."""
    answer_tokens: Distribution = constant(256)
    """Each answer, cut at `rollout.sampling.max_tokens`."""
    reset_seconds: Distribution = NOTHING
    step_seconds: Distribution = NOTHING
    reward_seconds: Distribution = NOTHING
    """Of a rule; judged tasks are scored by the scenario's judge."""
    judged: bool = False
    """Scored by the language model of `judge` in the scenario."""
    success_rate: Chance = 0.5
    """Episodes that earn reward 1."""
    same_turns: bool = False
    """Members of a group take equally many turns."""
    alike: Chance = 0.0
    """How much members of a group resemble each other in the lengths of their answers: the share of the variance (of
    the logarithm) that belongs to the task. Only with lognormal `answer_tokens`."""
    reset_failure_rate: Chance = 0.0
    """Chance that a reset fails after its time."""
    step_failure_rate: Chance = 0.0
    reset_hang_rate: Chance = 0.0
    """Chance that a reset never returns: the deadline ends it."""
    step_hang_rate: Chance = 0.0
    image_seconds: Distribution = NOTHING
    """What a reset takes longer if the task's image is not in the image cache."""
    image_cache_hit_rate: Chance = 1.0
    io_seconds: Distribution = NOTHING
    """Transport of each observation from the environments' cluster."""

    @model_validator(mode="after")
    def _can_be_alike(self) -> TaskModel:
        if self.alike and not isinstance(self.answer_tokens, LogNormal) and not self.preset:
            raise ValueError(f"alike needs answer_tokens of type lognormal, not {self.answer_tokens.type}")
        return self


class WorkloadConfig(Section):
    """What is played: tasks drawn by weight, or a recorded run again."""

    tasks: tuple[TaskModel, ...] = ()
    trace: FileName | None = None
    """A run folder whose trajectories are played again, lengths and waits included; instead of `tasks`."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> WorkloadConfig:
        if bool(self.tasks) == bool(self.trace):
            raise ValueError("workload needs either tasks or a trace")
        return self
