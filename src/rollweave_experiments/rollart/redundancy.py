"""Starts more groups and larger groups than the 32 x 8 that a step consumes, so that it does not wait for the last."""

from __future__ import annotations

from rollweave_experiments.claims.rollart import GRID_GROUPS, GRID_SIZES, REDUNDANCY
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import measured, pool, rollout, task

Grid = dict[tuple[int, int], float]


def rollout_seconds(groups: int, size: int, seed: int, small: bool) -> float:
    wanted = 8 if small else 32
    outcome = measured(
        [pool("rollout", "H800", 24), pool("train", "H800", 8)],
        [task("gem-math", same_turns=True)],  # members of a group have the same problem before them
        seed=seed,
        rollout=rollout(wanted, redundant_groups=(groups - 32) / 32, redundant_members=size - 8),
        pipeline={"type": "sync+"},
        training={"steps": 2 if small else 10},
        warmup=0,
    )
    return outcome.rollout_seconds


def measure(seed: int, small: bool) -> Measurement:
    seconds = {
        (groups, size): rollout_seconds(groups, size, seed, small) for size in GRID_SIZES for groups in GRID_GROUPS
    }
    gains = {cell: seconds[32, 8] / value for cell, value in seconds.items()}
    values = {f"{groups} groups of {size}": value for (groups, size), value in gains.items()}
    holds = {f"{groups} groups of {size}": _no_slower(gains, groups, size) for groups, size in gains}
    versus = "four more groups against four more members"
    values[versus] = gains[36, 8] / gains[32, 12]
    holds[versus] = values[versus] > 1.0
    lines = {f"groups of {size}": tuple((g, gains[g, size]) for g in GRID_GROUPS) for size in GRID_SIZES}
    return Measurement(values, holds, (Plot("speed-up of rollout", "groups started", "ratio", lines),))


def _no_slower(gains: Grid, groups: int, size: int) -> bool:
    """Whether the rollout is no slower than with two groups less, and than with two members less."""
    return all(gains[groups, size] >= gains.get(less, 0.0) for less in ((groups - 2, size), (groups, size - 2)))


EXPERIMENT = Experiment(REDUNDANCY, measure)
