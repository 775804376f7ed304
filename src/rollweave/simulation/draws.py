"""From a distribution of the configuration to a function that draws from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from math import exp, inf
from random import Random

from rollweave.config.workload import Constant, Distribution, Empirical, LogNormal, Mixed, Normal, Uniform

Draw = Callable[[Random], float]


@lru_cache(maxsize=1024)
def sampler(distribution: Distribution) -> Draw:
    match distribution:
        case Constant(value=value):
            return lambda rng: value
        case Uniform(low=bottom, high=top):
            return lambda rng: bottom + (top - bottom) * rng.random()
        case Normal(mean=mean, std=std):
            return lambda rng: max(0.0, rng.gauss(mean, std))
        case LogNormal(median=median, sigma=sigma, low=low, high=high):
            return _lognormal(median, sigma, low, inf if high is None else high)
        case Empirical(values=values):
            return lambda rng: values[int(rng.random() * len(values))]
        case Mixed():
            return _mixed(distribution)


def _lognormal(median: float, sigma: float, low: float, high: float) -> Draw:
    def draw(rng: Random) -> float:
        value = median * exp(sigma * rng.gauss(0.0, 1.0))  # half the time of `lognormvariate`
        return low if value < low else high if value > high else value

    return draw


def _mixed(distribution: Mixed) -> Draw:
    parts = [sampler(part.of) for part in distribution.parts]
    borders = list(accumulate(part.weight for part in distribution.parts))

    def draw(rng: Random) -> float:
        place = rng.random() * borders[-1]
        return next(part for part, border in zip(parts, borders, strict=True) if place <= border)(rng)

    return draw


def count(draw: Draw, rng: Random) -> int:
    """A length or a number of turns: at least 1, rounded."""
    return round(draw(rng)) or 1
