"""Measures queue scheduling when half of the groups are filtered because of equal rewards.

Whole batches wait for their slowest member again and again. A queue takes the next prompt at once, and 16 extra prompts
in play replace the filtered ones in advance.
"""

from __future__ import annotations

from typing import Any

from rollweave_experiments.claims.flash import QUEUE
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import measured, pool, rollout, task


def generation_seconds(seed: int, small: bool, **how: Any) -> float:
    solved = task("rlvr-math", success_rate=1.0) | {"name": "solved"}
    outcome = measured(
        [pool("rollout", "H800", 8), pool("train", "H800", 8)],
        [task("rlvr-math"), solved],
        seed=seed,
        rollout=rollout(8, filter="zero_variance", **how),
        pipeline={"type": "sync+"},
        training={"steps": 2 if small else 20},
        warmup=0,
    )
    return outcome.rollout_seconds


def measure(seed: int, small: bool) -> Measurement:
    seconds = {
        "batch": generation_seconds(seed, small, scheduling="batch"),
        "queue": generation_seconds(seed, small),
        "queue, 16 extra": generation_seconds(seed, small, redundant_groups=2.0),
    }
    plain, extra = seconds["batch"] / seconds["queue"], seconds["batch"] / seconds["queue, 16 extra"]
    labels = [claim.label for claim in QUEUE.claims]
    plot = Plot("generation time of a step", "", "s", {"measured": tuple(seconds.items())}, bars=True)
    values = dict(zip(labels, (plain, extra), strict=True))
    return Measurement(values, dict(zip(labels, (plain > 1.2, extra > plain), strict=True)), (plot,))


EXPERIMENT = Experiment(QUEUE, measure)
