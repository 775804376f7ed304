"""Measures iterations of SWE-bench whose environments sometimes never start, with and without the image cache.

There are four times the paper's sixty iterations, because in sixty the failures depend too much on chance.
A start that hangs is given up at its deadline and tried again. Without the cache its chance is such that on average
7 of 60 iterations have one; with the cache one start in 10,000 hangs. The size is an eighth of the paper's: 16 episodes
on 4 H800. The share of env.reset is the time by which an iteration is longer than with starts that take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from rollweave.simulation.outcome import SimulationResult
from rollweave_experiments.claims.rollart import FAILURES
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import measured, pool, rollout, task

EPISODES = 16
HANGING, HANGING_CACHED = 1 - (1 - 7 / 60) ** (1 / EPISODES), 1e-4
GIVEN_UP_AFTER = 350.0
"""Seconds, chosen so that a reset that hangs takes the 400 s of the paper, including its second attempt."""


def iterations(seed: int, small: bool, **changes: Any) -> SimulationResult:
    return measured(
        [pool("rollout", "H800", 3), pool("train", "H800", 1)],
        [task("swe-bench", **changes)],
        seed=seed,
        rollout=rollout(EPISODES // 8, deadlines={"env_reset": GIVEN_UP_AFTER}),
        pipeline={"type": "sync+"},
        training={"steps": 12 if small else 240},  # with fewer, perhaps none would have a failure
        warmup=0,
    )


def hits(outcome: SimulationResult) -> list[bool]:
    """For each iteration, whether an environment failed in it."""
    totals = [0.0, *_column(outcome, "ledger/attempt/infra-failed")]
    return [after > before for before, after in pairwise(totals)]


def _column(outcome: SimulationResult, key: str) -> list[float]:
    return [float(str(row.get(key, 0.0))) for row in outcome.rows]


def measure(seed: int, small: bool) -> Measurement:
    bare = iterations(seed, small, reset_hang_rate=HANGING)
    cached = iterations(seed, small, reset_hang_rate=HANGING_CACHED)
    instant = iterations(seed, small, reset_seconds={"type": "constant", "value": 0.0})
    hit, seconds = hits(bare), _column(bare, "time/step")
    shares = [100 * (1 - no / yes) for yes, no in zip(seconds, _column(instant, "time/step"), strict=True)]
    values = {
        "iterations hit of 60, no cache": 60 * fmean(hit),
        "iterations hit of 60, cache": 60 * fmean(hits(cached)),
        "time of a hit iteration / of another": _mean(seconds, hit, True) / _mean(seconds, hit, False),
        "share of env.reset, not hit": _mean(shares, hit, False),
        "share of env.reset, hit": _mean(shares, hit, True),
    }
    holds = {
        "iterations hit of 60, cache": values["iterations hit of 60, cache"] <= 2,
        "time of a hit iteration / of another": values["time of a hit iteration / of another"] > 1.15,
        "share of env.reset, not hit": 5 < values["share of env.reset, not hit"] < 30,
        "share of env.reset, hit": values["share of env.reset, hit"] >= 2 * values["share of env.reset, not hit"],
    }
    lines = {
        name: tuple((step + 1, value) for step, value in enumerate(_column(run, "time/step")))
        for name, run in (("no cache", bare), ("cache", cached))
    }
    return Measurement(values, holds, (Plot("iteration time", "iteration", "s", lines),))


def _mean(values: Sequence[float], hit: Sequence[bool], which: bool) -> float:
    """The mean over the iterations with a failure, or over the others; over all if there are none of that kind."""
    return fmean([value for value, one in zip(values, hit, strict=True) if one is which] or values)


EXPERIMENT = Experiment(FAILURES, measure)
