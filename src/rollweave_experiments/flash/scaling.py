"""Scales from 16 to 128 GPUs: more GPUs do not shorten the longest answer, so waiting for it costs more and more."""

from __future__ import annotations

from itertools import pairwise

from rollweave_experiments.claims.flash import SCALING
from rollweave_experiments.flash.testbed import asynchronous, synchronous
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import series

GPUS = (16, 32, 64, 128)


def measure(seed: int, small: bool) -> Measurement:
    sync = {gpus: synchronous(gpus, seed, small).tokens_per_second for gpus in GPUS}
    free = {gpus: asynchronous(gpus // 2, gpus // 2, seed, small).tokens_per_second for gpus in GPUS}
    gains = {gpus: free[gpus] / sync[gpus] for gpus in GPUS}
    values = {f"asynchronous / synchronous, {gpus} GPUs": value for gpus, value in gains.items()}
    holds = {label: value > 1.0 for label, value in values.items()}
    holds["gain over GPUs"] = all(gains[more] > gains[less] for less, more in pairwise(GPUS))
    values["range at 128 GPUs"] = gains[128]
    holds["range at 128 GPUs"] = gains[128] > 1.4
    lines = {"synchronous": series(sync), "asynchronous": series(free)}
    return Measurement(values, holds, (Plot("throughput", "GPUs", "tokens/s", lines),))


EXPERIMENT = Experiment(SCALING, measure)
