"""Compares two ways of weights over the slow link between clusters: one copy per rollout GPU, or one scattered copy."""

from __future__ import annotations

from rollweave_experiments.claims.rollmux import SYNC
from rollweave_experiments.frame import Experiment, Measurement

GIGABYTES = {"7B": 15.2, "14B": 29.5, "32B": 65.5}
"""The sizes of Qwen2.5 in 16 bit."""
LINK, LOCAL = 2.5, 100.0
"""GB/s: 20 Gbit/s per GPU between the clusters, and a broadcast inside a cluster."""


def scattered(size: float, gpus: int) -> float:
    """Seconds if each link carries a different shard, followed by a broadcast inside the cluster."""
    return size / gpus / LINK + size / LOCAL


def flat(size: float) -> float:
    """Seconds if every rollout GPU pulls the whole model over its own link."""
    return size / LINK


def measure(seed: int, small: bool) -> Measurement:
    values = {f"scatter and broadcast, 8 to 8, {name}": scattered(size, 8) for name, size in GIGABYTES.items()}
    values |= {f"flat, 8 to 8, {name}": flat(size) for name, size in GIGABYTES.items()}
    wide = {f"flat / scatter, 16 to 16, {name}": flat(size) / scattered(size, 16) for name, size in GIGABYTES.items()}
    wide.pop("flat / scatter, 16 to 16, 14B")
    return Measurement(values | wide, {label: ratio > 2 for label, ratio in wide.items()})


EXPERIMENT = Experiment(SYNC, measure)
