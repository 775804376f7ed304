"""The setup of ROLL Flash's presets: Qwen3-8B on single-turn math with heavy-tailed answers, on H800.

In synchronous training, generation and training alternate on all GPUs; asynchronous training divides the GPUs.
"""

from __future__ import annotations

from typing import Any

from rollweave.simulation.outcome import SimulationResult
from rollweave_experiments.setup import Data, measured, pool, rollout, task

GROUPS = 128
"""The prompts of a rollout batch, with 8 answers each, because ROLL counts `rollout_batch_size` in prompts."""


def synchronous(gpus: int, seed: int, small: bool, groups: int = GROUPS, **more: Any) -> SimulationResult:
    return _run([pool("colocated", "H800", gpus)], {"type": "sync+"}, seed, small, groups, **more)


def asynchronous(
    generating: int, training: int, seed: int, small: bool, alpha: float = 2, groups: int = GROUPS, **more: Any
) -> SimulationResult:
    pools = [pool("rollout", "H800", generating), pool("train", "H800", training)]
    return _run(pools, {"type": "rollart", "alpha": alpha}, seed, small, groups, **more)


def _run(pools: list[Data], pipeline: Data, seed: int, small: bool, groups: int, **more: Any) -> SimulationResult:
    length = {"training": {"steps": 3}, "warmup": 1} if small else {"training": {"steps": 14}, "warmup": 5}
    answers = more.pop("answers", {})
    groups = max(2, groups // 32) if small else groups
    return measured(
        pools,
        [task("rlvr-math", **answers)],
        seed=seed,
        rollout=rollout(groups),
        pipeline=pipeline,
        **{**length, **more},
    )
