"""R2: environments that answer after N(10 s, sigma), in lockstep for the whole batch or each at its own pace."""

from __future__ import annotations

from itertools import pairwise

from rollweave_experiments.claims.rollart import LATENCY
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import measured, normal, pool, rollout, series, task

SIGMAS = (1, 3, 5, 7, 10)


def gain(sigma: float, seed: int, small: bool) -> float:
    """The rollout time with a barrier after each turn, divided by the time without; nothing else differs."""

    def seconds(pipeline: str) -> float:
        outcome = measured(
            [pool("rollout", "H800", 32), pool("train", "H800", 32)],
            [task("frozen-lake", step_seconds=normal(10, sigma))],
            seed=seed,
            rollout=rollout(4 if small else 32),
            pipeline={"type": pipeline},
            training={"steps": 1},
            warmup=0,
        )
        return outcome.rollout_seconds

    return seconds("sync") / seconds("sync+")


def measure(seed: int, small: bool) -> Measurement:
    gains = {sigma: gain(sigma, seed, small) for sigma in SIGMAS}
    holds = {f"sigma {sigma}": gains[sigma] > gains[less] for less, sigma in pairwise(SIGMAS) if sigma >= 5}
    paper = {sigma: claim.paper for sigma, claim in zip(SIGMAS, LATENCY.claims, strict=True)}
    lines = {
        "paper": series({s: float(f) for s, f in paper.items() if isinstance(f, float)}),
        "measured": series(gains),
    }
    plot = Plot("gain of trajectory-level interaction", "sigma, s", "ratio", lines)
    return Measurement({f"sigma {sigma}": value for sigma, value in gains.items()}, holds, (plot,))


EXPERIMENT = Experiment(LATENCY, measure)
