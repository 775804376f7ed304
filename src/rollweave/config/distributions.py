"""Distributions a file can name: lengths, turns and latencies of simulated work."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rollweave.config.base import Section

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
