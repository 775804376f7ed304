"""Compares the throughput of five modes from Sync to RollArt, each with the mode before it, for three models."""

from __future__ import annotations

from itertools import pairwise

from rollweave_experiments.claims.rollart import LADDER, MODELS
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.rollart.testbed import MODES, mode


def measure(seed: int, small: bool) -> Measurement:
    throughput = {model: {name: mode(name, model, seed, small).tokens_per_second for name in MODES} for model in MODELS}
    values = {}
    for model, found in throughput.items():
        for below, above in pairwise(MODES):
            values[f"{above} / {below}, {model}"] = found[above] / found[below]
        values[f"RollArt / Sync, {model}"] = found["RollArt"] / found["Sync"]
    least = {"One-off / Sync+": 1.2, "AReaL / One-off": 0.97, "RollArt / AReaL": 1.0}
    holds = {
        f"{rung}, {model}": values[f"{rung}, {model}"] > bound for rung, bound in least.items() for model in MODELS
    }
    heights = {
        name: tuple((model, found[name] / found["Sync"]) for model, found in throughput.items()) for name in MODES
    }
    return Measurement(values, holds, (Plot("throughput over Sync", "", "ratio", heights, bars=True),))


EXPERIMENT = Experiment(LADDER, measure)
