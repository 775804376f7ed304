"""Measures the path of the weights: push, pull, the part for which engines stand still, and the gain of hiding it."""

from __future__ import annotations

from rollweave.config.hardware import Constants
from rollweave.config.models import MODELS as SPECS
from rollweave.simulation.costs.training import weight_path
from rollweave_experiments.claims.rollart import MODELS as NAMES
from rollweave_experiments.claims.rollart import WEIGHTS
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.rollart.testbed import MODELS, rollart


def blocking(constants: Constants) -> dict[str, float]:
    """Between clusters the blocking path is a push and then a pull (the paper's naive path)."""
    return {"broadcast_bandwidth": 1 / (1 / constants.push_bandwidth + 1 / constants.pull_bandwidth)}


def measure(seed: int, small: bool) -> Measurement:
    constants = Constants()
    values, holds = {}, {}
    for name in NAMES:
        path = weight_path(SPECS[MODELS[name]], constants)
        hidden = rollart(name, seed, small)
        stood = rollart(name, seed, small, weights={"transfer": "blocking"}, constants=blocking(constants))
        values[f"push, {name}"] = path.push
        values[f"accumulated pull, {name}"] = path.pull
        values[f"exposed pull, {name}"] = hidden.sync_exposed_seconds
        holds[f"exposed pull, {name}"] = hidden.sync_exposed_seconds < path.pull / 2
        values[f"step time, blocking / asynchronous, {name}"] = stood.step_seconds / hidden.step_seconds
    return Measurement(values, holds)


EXPERIMENT = Experiment(WEIGHTS, measure)
