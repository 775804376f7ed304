"""Simulates a mixture-of-experts job on a thirtieth of the paper's 3,000 GPUs.

It measures how long get_batch waits, and what a better division of the same GPUs gains. (`python -m bench.simulate`
runs all 3,000.)
"""

from __future__ import annotations

from statistics import fmean

from rollweave.config.hardware import Constants
from rollweave.seeds import derive
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.workloads.episode import EpisodeModel
from rollweave.simulation.workloads.presets import PRESETS
from rollweave_experiments.claims.rollart import PRODUCTION
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.setup import Data, measured, pool, rollout, task

MODEL: Data = {
    "name": "moe-235b",
    "params": 235e9,
    "active_params": 22e9,
    "experts": 128,
    "experts_per_token": 8,
    "layers": 94,
    "hidden": 4096,
    "heads": 64,
    "kv_heads": 4,
    "head_dim": 128,
    "source": "config.json of Qwen3-235B-A22B on Hugging Face; the paper says hundreds of billions, mixture of experts",
}
GPUS, NODE = 96, 8
PUSH = Constants().push_bandwidth * 500 / 32
"""GB/s to the weight store: 500 GPUs push their shares at once; the testbed of table 4 has 32."""
TRAINING = (16, 24, 32, 40)
"""The numbers of GPUs that train; the first is the paper's ratio of 1:5."""


def production(training: int, prefix_cache: bool, seed: int, small: bool) -> SimulationResult:
    return measured(
        [pool("rollout", "H800", GPUS - training, NODE), pool("train", "H800", training)],
        [task("production")],
        seed=seed,
        model=MODEL["name"],
        models=[MODEL],
        rollout=rollout(8 if small else 24, max_context=58000),
        prefix_cache=prefix_cache,
        constants={"push_bandwidth": PUSH},
        training={"steps": 2 if small else 16},
    )


def waits(outcome: SimulationResult) -> list[float]:
    """For each step that counts, the share of its time in which get_batch waited."""
    return [float(str(row["time/get_batch"])) / float(str(row["time/step"])) for row in outcome.rows[1:]]


def longest_response(seed: int, episodes: int = 768) -> float:
    """The longest response of a step, divided by the mean."""
    model = EpisodeModel(PRESETS["production"])
    lengths = [sum(model.draw(derive(seed, "response", n // 8), n % 8).answers) for n in range(episodes)]
    return max(lengths) / fmean(lengths)


def measure(seed: int, small: bool) -> Measurement:
    first = production(TRAINING[0], prefix_cache=False, seed=seed, small=small)
    speeds = {
        training: production(training, prefix_cache=True, seed=seed, small=small).tokens_per_second
        for training in TRAINING
    }
    shares = [100 * share for share in waits(first)]
    tuned, longest = max(speeds.values()) / first.tokens_per_second, longest_response(seed)
    labels = [claim.label for claim in PRODUCTION.claims]
    values = dict(zip(labels, (max(shares), fmean(shares), longest, tuned), strict=True))
    kept = (30 < max(shares) < 90, 10 < fmean(shares) < 60, longest > 4, tuned > 1.1)
    lines = {"prefix cache on": tuple((training, speed / 1000) for training, speed in speeds.items())}
    plot = Plot(f"throughput over how many of {GPUS} GPUs train", "training GPUs", "1,000 tokens/s", lines)
    return Measurement(values, dict(zip(labels, kept, strict=True)), (plot,))


EXPERIMENT = Experiment(PRODUCTION, measure)
