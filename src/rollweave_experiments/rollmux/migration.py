"""Compares two jobs on one rollout and one train node with and without moving the last responses to fewer GPUs."""

from __future__ import annotations

from rollweave.mux.model.period import meta_period
from rollweave_experiments.claims.rollmux import MIGRATION
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.rollmux.reality import Migration, migrated_period
from rollweave_experiments.rollmux.types import TYPES, Type, group

SHORT = Type(86, 68, "7B")
PAIRS = {
    "7B-4k x 2": (SHORT, SHORT),
    "7B-8k x 2": (TYPES["A"], TYPES["A"]),
    "7B-8k + 14B-8k": (TYPES["A"], TYPES["B"]),
    "14B-8k x 2": (TYPES["B"], TYPES["B"]),
}


def measure(seed: int, small: bool) -> Measurement:
    gains = {name: _gain(*pair) for name, pair in PAIRS.items()}
    holds = {name: 1 < gain < 1.5 for name, gain in gains.items()}
    holds["order of the pairs"] = (
        min(gains, key=gains.__getitem__) == "7B-8k + 14B-8k" and max(gains, key=gains.__getitem__) == "14B-8k x 2"
    )
    return Measurement(gains, holds)


def _gain(first: Type, second: Type) -> float:
    pair = group([("1", first, (0,)), ("2", second, (0,))], 1)
    return meta_period(pair) / migrated_period(pair, Migration())


EXPERIMENT = Experiment(MIGRATION, measure)
