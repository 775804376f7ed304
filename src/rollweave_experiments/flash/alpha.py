"""Finds the best asynchronous ratio: the smallest alpha within 5 % of the fastest, for short and long answers and for
small and large rollouts.
"""

from __future__ import annotations

from typing import Any

from rollweave_experiments.claims.flash import BEST_ALPHA
from rollweave_experiments.flash.testbed import GROUPS, asynchronous
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import series

ALPHAS = (0, 1, 2, 3, 4, 6, 8)
WITHIN = 0.05
CASES: dict[str, dict[str, Any]] = {
    "best alpha at 4k": {"rollout_limit": 4096},
    "best alpha at 32k": {"rollout_limit": 32768},
    "best alpha, rollout size 32": {"groups": 32},
    "best alpha, rollout size 256": {"groups": 256},
}


def step_seconds(case: str, seed: int, small: bool) -> dict[int, float]:
    limit, groups = CASES[case].get("rollout_limit", 32768), CASES[case].get("groups", GROUPS)
    answers = {"answer_tokens": {"type": "lognormal", "median": 1100, "sigma": 1.05, "low": 50, "high": limit - 2048}}
    return {
        alpha: asynchronous(24, 16, seed, small, alpha=alpha, groups=groups, answers=answers).step_seconds
        for alpha in (ALPHAS[:3] if small else ALPHAS)
    }


def best(seconds: dict[int, float]) -> int:
    return min(alpha for alpha, value in seconds.items() if value <= min(seconds.values()) * (1 + WITHIN))


def measure(seed: int, small: bool) -> Measurement:
    found = {case: step_seconds(case, seed, small) for case in CASES}
    alpha = {case: best(seconds) for case, seconds in found.items()}
    short, long, few, many = alpha.values()
    kept = (short <= long, 1 <= long <= 4, few >= many, 1 <= many <= 4)
    lines = {
        case.removeprefix("best alpha").strip(", "): series({a: s / seconds[0] for a, s in seconds.items()})
        for case, seconds in found.items()
    }
    plot = Plot("step time over that at alpha 0", "alpha", "ratio", lines)
    return Measurement(
        {case: float(value) for case, value in alpha.items()}, dict(zip(CASES, kept, strict=True)), (plot,)
    )


EXPERIMENT = Experiment(BEST_ALPHA, measure)
