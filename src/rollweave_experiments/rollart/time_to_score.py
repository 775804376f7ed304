"""Time to the same score. At alpha <= 1 the steps are equally good, so it is the ratio of the step times (32B)."""

from __future__ import annotations

from rollweave_experiments.claims.rollart import TIME_TO_SCORE
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.rollart.testbed import mode


def measure(seed: int, small: bool) -> Measurement:
    seconds = {name: mode(name, "32B", seed, small).step_seconds for name in ("Sync+", "One-off", "AReaL", "RollArt")}
    values = {f"RollArt / {name}": seconds[name] / seconds["RollArt"] for name in ("Sync+", "One-off", "AReaL")}
    values["One-off / Sync+"] = seconds["Sync+"] / seconds["One-off"]
    least = {"RollArt / Sync+": 1.3, "RollArt / One-off": 1.0, "RollArt / AReaL": 1.0, "One-off / Sync+": 1.2}
    return Measurement(values, {label: values[label] > bound for label, bound in least.items()})


EXPERIMENT = Experiment(TIME_TO_SCORE, measure)
