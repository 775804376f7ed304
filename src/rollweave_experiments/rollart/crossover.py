"""Figure 4: compares 2 H800 with 6 H20, which cost the same, for a prefill-heavy and a decode-heavy task."""

from __future__ import annotations

from rollweave_experiments.claims.rollart import CROSSOVER
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import measured, pool, rollout, series, task

BATCHES = (64, 96, 128, 160, 192)


def rollout_seconds(preset: str, device: str, batch: int, seed: int, small: bool) -> float:
    outcome = measured(
        [pool("rollout", device, 2 if device == "H800" else 6), pool("train", "H800", 8)],
        [task(preset)],
        seed=seed,
        rollout=rollout(batch // 8 // (4 if small else 1)),
        pipeline={"type": "sync+"},
        training={"steps": 1 if small else 2},
        warmup=0,
    )
    return outcome.rollout_seconds


def measure(seed: int, small: bool) -> Measurement:
    def ratio(preset: str, over: str, under: str, batch: int) -> float:
        return rollout_seconds(preset, over, batch, seed, small) / rollout_seconds(preset, under, batch, seed, small)

    lake = {batch: ratio("frozen-lake", "H800", "H20", batch) for batch in BATCHES}
    math = {batch: ratio("gem-math", "H20", "H800", batch) for batch in BATCHES}
    values = {f"FrozenLake H800 / H20 time, batch {batch}": value for batch, value in lake.items()}
    values |= {f"GEM-math H20 / H800 time, batch {batch}": value for batch, value in math.items()}
    holds = {label: value < 1.0 for label, value in values.items()}
    holds["both gaps widen with the batch"] = lake[192] < lake[64] and math[192] < math[64]
    lines = {"FrozenLake: H800 / H20": series(lake), "GEM-math: H20 / H800": series(math)}
    return Measurement(values, holds, (Plot("rollout time of the better device", "batch", "ratio", lines),))


EXPERIMENT = Experiment(CROSSOVER, measure)
