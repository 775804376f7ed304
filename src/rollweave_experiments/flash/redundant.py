"""Measures redundant environments at N(10 s, 5 s). Some environments stop, and with redundancy a step does not wait."""

from __future__ import annotations

from rollweave_experiments.claims.flash import REDUNDANT
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import measured, normal, pool, rollout, task

STARTED = {"32x8": (32, 8), "36x9": (36, 9), "36x12": (36, 12)}
STOPPING = 1e-3
"""The chance that a step never returns; it is given up after `GIVEN_UP_AFTER` seconds."""
GIVEN_UP_AFTER = 120.0


def rollout_seconds(groups: int, size: int, seed: int, small: bool) -> float:
    outcome = measured(
        [pool("rollout", "H800", 16), pool("train", "H800", 16)],
        [
            task(
                "webshop",
                turns={"type": "constant", "value": 4},
                step_seconds=normal(10, 5),
                step_hang_rate=STOPPING,
            )
        ],
        seed=seed,
        rollout=rollout(
            4 if small else 32,
            redundant_groups=(groups - 32) / 32,
            redundant_members=size - 8,
            deadlines={"env_step": GIVEN_UP_AFTER},
        ),
        pipeline={"type": "sync+"},
        training={"steps": 1 if small else 5},
        warmup=0,
    )
    return outcome.rollout_seconds


def measure(seed: int, small: bool) -> Measurement:
    seconds = {name: rollout_seconds(*shape, seed, small) for name, shape in STARTED.items()}
    more, larger = seconds["32x8"] / seconds["36x9"], seconds["32x8"] / seconds["36x12"]
    labels = [claim.label for claim in REDUNDANT.claims]
    values = dict(zip(labels, (more, larger, larger / more), strict=True))
    kept = dict(zip(labels, (more > 1.05, larger > 1.05, larger / more > 0.85), strict=True))
    plot = Plot("rollout time of a step", "started", "s", {"measured": tuple(seconds.items())}, bars=True)
    return Measurement(values, kept, (plot,))


EXPERIMENT = Experiment(REDUNDANT, measure)
