"""Measures prompt replication: the answers of a prompt use one engine together, or any engine that has room."""

from __future__ import annotations

from rollweave_experiments.claims.flash import REPLICATION
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.setup import measured, pool, rollout, task

SHAPES = ((64, 16), (32, 16), (16, 32), (16, 64))
ENGINES, SLOTS = 8, 16
"""The number of engines, and of requests that each runs at once; when one ends, the next takes its place."""


def generation_seconds(groups: int, size: int, replicated: bool, seed: int, small: bool) -> float:
    outcome = measured(
        [pool("rollout", "H800", ENGINES), pool("train", "H800", 8)],
        [task("rlvr-math")],
        seed=seed,
        rollout=rollout(
            groups // 4 if small else groups, size, prompt_replication=replicated, environments=ENGINES * SLOTS
        ),
        pipeline={"type": "sync+"},
        training={"steps": 1 if small else 8},
        warmup=0,
    )
    return outcome.rollout_seconds


def measure(seed: int, small: bool) -> Measurement:
    gains = {
        f"{groups} x {size}": generation_seconds(groups, size, False, seed, small)
        / generation_seconds(groups, size, True, seed, small)
        for groups, size in SHAPES
    }
    holds = {label: value >= 1.0 for label, value in gains.items()}
    holds["fewer, larger groups"] = gains["16 x 64"] >= gains["64 x 16"]
    return Measurement(gains, holds)


EXPERIMENT = Experiment(REPLICATION, measure)
