"""Measures environment-level asynchrony at N(10 s, 10 s), the last point of the sweep in `rollart/latency.py`."""

from __future__ import annotations

from rollweave_experiments.claims.flash import ENVIRONMENT_ASYNC
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.rollart.latency import gain


def measure(seed: int, small: bool) -> Measurement:
    value = gain(10, seed, small)
    label = ENVIRONMENT_ASYNC.claims[0].label
    return Measurement({label: value}, {label: value > 1.5})


EXPERIMENT = Experiment(ENVIRONMENT_ASYNC, measure)
