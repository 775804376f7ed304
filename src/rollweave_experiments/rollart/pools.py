"""R1: compares three rollout pools of equal cost, beside 32 H800 that train; all counts are divided by four.

Pools of this size cannot be divided into engines of four GPUs, so the largest model runs on two.
"""

from __future__ import annotations

from rollweave_experiments.claims.rollart import MODELS as NAMES
from rollweave_experiments.claims.rollart import POOLS
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.rollart.testbed import DECODE_HEAVY, MODELS, SCALE, TENSOR_PARALLEL, tasks
from rollweave_experiments.setup import Data, measured, pool, rollout


def equal_cost(parallel: int) -> dict[str, list[Data]]:
    return {
        "H800 only": [pool("rollout", "H800", 72 // SCALE, parallel)],
        "H20 only": [pool("rollout", "H20", 208 // SCALE, parallel)],
        "mix": [
            pool("rollout", "H800", 64 // SCALE, parallel),
            pool("rollout", "H20", 24 // SCALE, parallel, DECODE_HEAVY),
        ],
    }


def throughput(model: str, pools: list[Data], seed: int, small: bool) -> float:
    outcome = measured(
        [*pools, pool("train", "H800", 32 // SCALE)],
        tasks(model),
        seed=seed,
        model=MODELS[model],
        rollout=rollout(8 if small else 64 // SCALE),
        training={"steps": 2 if small else 4},
    )
    return outcome.tokens_per_second


def measure(seed: int, small: bool) -> Measurement:
    found = {
        model: {
            name: throughput(model, pools, seed, small)
            for name, pools in equal_cost(min(2, TENSOR_PARALLEL[model])).items()
        }
        for model in NAMES
    }
    values = {
        f"mix / {other}, {model}": found[model]["mix"] / found[model][other]
        for other in ("H20 only", "H800 only")
        for model in NAMES
    }
    heights = {
        name: tuple((model, found[model][name] / 1000) for model in NAMES) for name in ("H800 only", "H20 only", "mix")
    }
    plot = Plot("throughput of pools of equal cost", "", "1,000 tokens/s", heights, bars=True)
    return Measurement(values, {label: value > 1.0 for label, value in values.items()}, (plot,))


EXPERIMENT = Experiment(POOLS, measure)
