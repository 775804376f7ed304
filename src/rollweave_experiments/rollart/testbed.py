"""RollArt's evaluation setup (section 7.1), at a quarter of its size: 32 GPUs and 128 trajectories per step.

There are as many environments as a batch has members, as in the public ROLL (`num_env_groups x group_size`).

Baselines have only H800 and blocking weight updates within their cluster. RollArt has H20 in place of a third of its
rollout GPUs, sends math and game tasks there, and moves weights in the background.

The paper takes a batch before the engines get the weights of the last step, and counts staleness from those engines.
So its alpha is one less than ours, with `sync_point: after_batch`.
"""

from __future__ import annotations

from typing import Any

from rollweave.simulation.outcome import SimulationResult
from rollweave_experiments.setup import Data, measured, pool, rollout, task

MODELS = {"8B": "qwen3-8b", "14B": "qwen3-14b", "32B": "qwen3-32b"}
TENSOR_PARALLEL = {"8B": 1, "14B": 2, "32B": 4}
DECODE_HEAVY = ("gem-math", "gem-game")

SCALE, SMALL_SCALE = 4, 8
"""All counts of the paper are divided by this."""

BASELINES: dict[str, Data] = {
    "Sync": {"type": "sync"},
    "Sync+": {"type": "sync+"},
    "One-off": {"type": "one_off"},
    "AReaL": {"type": "areal", "alpha": 1},
}
MODES = (*BASELINES, "RollArt")


def tasks(model: str) -> list[Data]:
    """The tasks in equal shares; SWE-bench only with the largest model."""
    names = ["webshop", "frozen-lake", *DECODE_HEAVY]
    return [task(name) for name in ([*names, "swe-bench"] if model == "32B" else names)]


def mode(name: str, model: str, seed: int, small: bool) -> SimulationResult:
    """Simulate one mode with one model."""
    if name == "RollArt":
        return rollart(model, seed, small)
    scale = SMALL_SCALE if small else SCALE
    pools = [pool("rollout", "H800", 96 // scale, TENSOR_PARALLEL[model]), pool("train", "H800", 32 // scale)]
    return _run(model, pools, seed, small, scale, pipeline=BASELINES[name], weights={"transfer": "blocking"})


def rollart(model: str, seed: int, small: bool, alpha: int = 1, scale: int = SCALE, **more: Any) -> SimulationResult:
    """Simulate RollArt; `alpha` is counted as in the paper."""
    scale = SMALL_SCALE if small else scale
    parallel = TENSOR_PARALLEL[model]
    pools = [
        pool("rollout", "H800", 64 // scale, parallel),
        pool("rollout", "H20", 32 // scale, parallel, DECODE_HEAVY),
        pool("train", "H800", 32 // scale),
    ]
    return _run(model, pools, seed, small, scale, **{"pipeline": {"type": "rollart", "alpha": alpha + 1}, **more})


def batch(scale: int) -> Data:
    return rollout(64 // scale, environments=512 // scale)


def _run(model: str, pools: list[Data], seed: int, small: bool, scale: int, **more: Any) -> SimulationResult:
    steps: Data = {"training": {"steps": 2}} if small else {"training": {"steps": 6}, "warmup": 2}
    return measured(
        pools, tasks(model), **{"seed": seed, "model": MODELS[model], "rollout": batch(scale), **steps, **more}
    )
