"""Compares prefill on H800 nodes and decode on H20 nodes with both on each of the same four nodes, for SWE-bench."""

from __future__ import annotations

from rollweave_experiments.claims.rollart import PREFILL_DECODE
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import measured, pool, rollout, task

NODE = 8
MODELS = {"32B": ("qwen3-32b", 4), "30B-A3B": ("qwen3-30b-a3b", 4)}
SPLITS = {"1P3D": (1, 3), "2P2D": (2, 2), "3P1D": (3, 1)}


def rollout_seconds(model: str, split: str, apart: bool, seed: int, small: bool) -> float:
    name, parallel = MODELS[model]
    prefill, decode = SPLITS[split]
    roles = ("prefill", "decode") if apart else ("rollout", "rollout")
    outcome = measured(
        [
            pool(roles[0], "H800", prefill * NODE, parallel),
            pool(roles[1], "H20", decode * NODE, parallel),
            pool("train", "H800", 4 * NODE),
        ],
        [task("swe-bench")],
        seed=seed,
        model=name,
        rollout=rollout(2 if small else 16),
        pipeline={"type": "sync+"},
        training={"steps": 1 if small else 2},
        warmup=0,
    )
    return outcome.rollout_seconds


def measure(seed: int, small: bool) -> Measurement:
    apart = {(m, s): rollout_seconds(m, s, True, seed, small) for m in MODELS for s in SPLITS}
    beside = {(m, s): rollout_seconds(m, s, False, seed, small) for m in MODELS for s in ("1P3D", "2P2D")}
    values = {f"{m} {s}: colocated / split": seconds / apart[m, s] for (m, s), seconds in beside.items()}
    worst = all(max(SPLITS, key=lambda s: apart[m, s]) == "3P1D" for m in MODELS)
    heights = {m: tuple((s, apart[m, s]) for s in SPLITS) for m in MODELS}
    return Measurement(values, {"3P1D": worst}, (Plot("rollout time when split", "", "s", heights, bars=True),))


EXPERIMENT = Experiment(PREFILL_DECODE, measure)
