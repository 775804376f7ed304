"""Finds how many of forty GPUs should generate and how many should train."""

from __future__ import annotations

from rollweave_experiments.claims.flash import SPLIT
from rollweave_experiments.flash.testbed import asynchronous, synchronous
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import series

GPUS = 40
GENERATING = (8, 16, 20, 24, 28, 32)


def measure(seed: int, small: bool) -> Measurement:
    speeds = {g: asynchronous(g, GPUS - g, seed, small).tokens_per_second for g in GENERATING}
    best = max(speeds, key=speeds.__getitem__)
    gain = speeds[best] / synchronous(GPUS, seed, small).tokens_per_second
    labels = [claim.label for claim in SPLIT.claims]
    plot = Plot("throughput", "generating GPUs of 40", "tokens/s", {"asynchronous": series(speeds)})
    return Measurement(
        dict(zip(labels, (float(best), gain), strict=True)),
        dict(zip(labels, (best not in (GENERATING[0], GENERATING[-1]), gain > 1.2), strict=True)),
        (plot,),
    )


EXPERIMENT = Experiment(SPLIT, measure)
