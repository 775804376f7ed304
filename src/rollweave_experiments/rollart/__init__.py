"""RollArt's experiments, in the order of its claims."""

from __future__ import annotations

from rollweave_experiments.rollart import (
    alpha,
    crossover,
    failures,
    ladder,
    latency,
    pools,
    prefill_decode,
    production,
    redundancy,
    serverless,
    time_to_score,
    weights,
)

EXPERIMENTS = (
    ladder.EXPERIMENT,
    time_to_score.EXPERIMENT,
    pools.EXPERIMENT,
    crossover.EXPERIMENT,
    latency.EXPERIMENT,
    serverless.EXPERIMENT,
    redundancy.EXPERIMENT,
    alpha.EXPERIMENT,
    weights.EXPERIMENT,
    prefill_decode.EXPERIMENT,
    failures.EXPERIMENT,
    production.EXPERIMENT,
)
