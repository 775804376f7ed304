"""Measures the step time for alpha from 1 to 6, at a quarter of the paper's size."""

from __future__ import annotations

from rollweave_experiments.claims.rollart import ALPHA, MODELS
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.rollart.testbed import rollart
from rollweave_experiments.setup import series

ALPHAS = (1, 2, 3, 4, 6)
PLATEAU = 3
"""A larger alpha than this should gain nothing."""


def step_seconds(model: str, alpha: int, seed: int, small: bool) -> float:
    length = {} if small else {"training": {"steps": 7}, "warmup": 2}
    return rollart(model, seed, small, alpha=alpha, scale=4, **length).step_seconds


def measure(seed: int, small: bool) -> Measurement:
    values, holds, lines = {}, {}, {}
    for model in MODELS:
        seconds = {alpha: step_seconds(model, alpha, seed, small) for alpha in ((1, 3, 4) if small else ALPHAS)}
        values[f"best of alpha 1-6 / alpha 1, {model}"] = seconds[1] / min(seconds.values())
        beyond = [value for alpha, value in seconds.items() if alpha > PLATEAU]
        holds[f"plateau, {model}"] = min(beyond) > seconds[PLATEAU] * 0.95
        lines[model] = series(seconds)
    return Measurement(values, holds, (Plot("step time", "alpha", "s", lines),))


EXPERIMENT = Experiment(ALPHA, measure)
