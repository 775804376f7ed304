"""How long modelled work takes: a function from a private generator to seconds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Duration = Callable[[Random], float]


def constant(seconds: float) -> Duration:
    return lambda rng: seconds


def normal(mean: float, sigma: float) -> Duration:
    """Cut at zero."""
    return lambda rng: max(0.0, rng.gauss(mean, sigma))


def lognormal(median: float, sigma: float) -> Duration:
    """Heavy-tailed: most work is short, some is very long."""
    return lambda rng: median * rng.lognormvariate(0.0, sigma)


NO_TIME = constant(0.0)
