"""Steps to the target over paired seeds: medians, and how much slower than `sync` beyond the alpha steps of delay."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bench.learning.learn import Curve
from bench.learning.variants import SYNC, TARGET, Variant

LIMIT = 1.15
"""The bar: at most this many times the steps of `sync`, plus alpha."""

RESAMPLES = 4000
INTERVAL = (0.05, 0.95)

Curves = dict[Variant, dict[int, Curve]]
"""By variant, then by seed."""


@dataclass(frozen=True, slots=True)
class Figures:
    variant: str
    loss: str
    alpha: int
    steps: list[int]
    """By seed, in order. A run that did not get there counts with its length, which is too few."""
    unfinished: int
    median_steps: float
    slowdown: float
    """(median steps - alpha) / median steps of sync."""
    low: float
    high: float
    staleness_mean: float
    staleness_max: float
    met: bool


def summarise(curves: Curves) -> list[Figures]:
    sync = _steps(curves[SYNC])
    return [_figures(variant, runs, sync) for variant, runs in curves.items()]


def _figures(variant: Variant, runs: dict[int, Curve], sync: list[int]) -> Figures:
    steps = _steps(runs)
    slowdown = _slowdown(steps, sync, variant.alpha)
    low, high = _bootstrap(steps, sync, variant.alpha)
    return Figures(
        variant=variant.name,
        loss=variant.loss,
        alpha=variant.alpha,
        steps=steps,
        unfinished=sum(curve.steps_to(TARGET) is None for curve in runs.values()),
        median_steps=median(steps),
        slowdown=slowdown,
        low=low,
        high=high,
        staleness_mean=fmean(s for curve in runs.values() for s in curve.staleness),
        staleness_max=max(curve.stalest for curve in runs.values()),
        met=slowdown <= LIMIT,
    )


def _steps(runs: dict[int, Curve]) -> list[int]:
    return [runs[seed].steps_to(TARGET) or len(runs[seed].rewards) for seed in sorted(runs)]


def _slowdown(steps: list[int], sync: list[int], alpha: int) -> float:
    return (median(steps) - alpha) / median(sync)


def _bootstrap(steps: list[int], sync: list[int], alpha: int) -> tuple[float, float]:
    """Seeds are drawn in pairs: the same ones for the variant and for sync."""
    draw = random.Random(0)
    found = []
    for _ in range(RESAMPLES):
        seeds = [draw.randrange(len(sync)) for _ in sync]
        found.append(_slowdown([steps[i] for i in seeds], [sync[i] for i in seeds], alpha))
    found.sort()
    low, high = (found[min(RESAMPLES - 1, int(share * RESAMPLES))] for share in INTERVAL)
    return low, high


def table(figures: list[Figures]) -> str:
    seeds = len(figures[0].steps)
    lines = [
        f"train steps to a reward of {TARGET:g}; {seeds} seeds, median; slowdown = (steps - alpha) / sync, "
        f"90 % bootstrap interval; asked: at most {LIMIT:g}",
        f"  {'':32}{'steps':>7}{'least':>7}{'most':>7}{'slowdown':>10}{'interval':>16}{'stale mean':>12}{'max':>5}",
    ]
    return "\n".join([*lines, *map(_line, figures)])


def _line(row: Figures) -> str:
    interval = f"{row.low:.2f} to {row.high:.2f}"
    verdict = "" if not row.alpha else "  met" if row.met else "  MISSED"
    unfinished = f", {row.unfinished} never got there" if row.unfinished else ""
    return (
        f"  {row.variant:32}{row.median_steps:7.1f}{min(row.steps):7}{max(row.steps):7}{row.slowdown:10.2f}"
        f"{interval:>16}{row.staleness_mean:12.2f}{row.staleness_max:5.0f}{verdict}{unfinished}"
    )


def as_json(figures: list[Figures], curves: Curves) -> dict[str, Any]:
    return {
        "target": TARGET,
        "limit": LIMIT,
        "variants": [{key: getattr(row, key) for key in row.__slots__} for row in figures],
        "rewards": {variant.name: [runs[s].rewards for s in sorted(runs)] for variant, runs in curves.items()},
    }
