"""Two weeks on the testbed with 200 jobs. The paper does not publish its trace and mix of jobs, so ours are drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from rollweave.mux.baselines import setup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.simulation.replay import ReplayResult
from rollweave.seeds import generator
from rollweave_experiments.claims.rollmux import TESTBED
from rollweave_experiments.frame import Experiment, Measurement, Plot
from rollweave_experiments.rollmux.reality import Migration, Reality, RealReplay
from rollweave_experiments.rollmux.types import TYPES

JOBS, SPAN_H, MEAN_H, SPREAD = 200, 370.2 - 27.9, 27.9, 1.0
WIDE = 0.09
"""The share of jobs on two nodes per pool: 8.74 GPUs per job, which follows from Solo-D's node-hours."""
MIXES = {"A to E": "ABCDE", "A and B": "AB", "D and E": "DE", "D": "D", "E": "E"}


def measure(seed: int, small: bool) -> Measurement:
    jobs = 10 if small else JOBS
    found = {name: _compare(types, jobs, seed) for name, types in MIXES.items()}
    runs = found["A to E"]
    ours, alone = runs["rollmux"], runs["solo-d"]
    mix = {how: 100 * count / sum(ours.admissions.values()) for how, count in ours.admissions.items()}
    bubbles = {
        "rollout": 100 * (ours.ledger.rollout.bubble / alone.ledger.rollout.bubble - 1),
        "train": 100 * (ours.ledger.train.bubble / alone.ledger.train.bubble - 1),
    }
    values = {
        "Solo-D / RollMux": _ratio(runs, "solo-d", "rollmux"),
        "co-located / RollMux": _ratio(runs, "colocated", "rollmux"),
        "Solo-D / default": _ratio(runs, "solo-d", "default"),
        "SLO kept": 100 * ours.slo_attainment,
        "admitted by direct packing": mix.get("direct", 0.0),
        "admitted by rollout scaling": mix.get("scaling", 0.0),
        "admitted into a new group": mix.get("isolated", 0.0),
        "rollout bubbles against Solo-D": bubbles["rollout"],
        "train bubbles against Solo-D": bubbles["train"],
    }
    return Measurement(values, _holds(values), (_plot(found),))


def _holds(values: Mapping[str, float]) -> dict[str, bool]:
    ways = [values[f"admitted {way}"] for way in ("by direct packing", "by rollout scaling", "into a new group")]
    return {
        "Solo-D / RollMux": values["Solo-D / RollMux"] > 1.3,
        "co-located / RollMux": values["co-located / RollMux"] > 1,
        "Solo-D / default": values["Solo-D / default"] > values["Solo-D / RollMux"],
        "admitted by direct packing": ways[0] == max(ways),
        "admitted by rollout scaling": 5 <= ways[1] <= 60,
        "admitted into a new group": 5 <= ways[2] <= 60,
        "rollout bubbles against Solo-D": values["rollout bubbles against Solo-D"] < 0,
        "train bubbles against Solo-D": values["train bubbles against Solo-D"] < 0,
    }


def _plot(found: Mapping[str, Mapping[str, ReplayResult]]) -> Plot:
    bars = (("Solo-D / RollMux", "solo-d", "rollmux"), ("Solo-D / default", "solo-d", "default"))
    series = {label: tuple((mix, _ratio(runs, *pair)) for mix, runs in found.items()) for label, *pair in bars}
    return Plot("Cost ratio by mix of job types (paper: 1.84)", "", "ratio", series, bars=True)


def _ratio(runs: Mapping[str, ReplayResult], above: str, below: str) -> float:
    return runs[above].ledger.dollars / runs[below].ledger.dollars


def _compare(types: str, jobs: int, seed: int) -> dict[str, ReplayResult]:
    return {policy: _replay(policy, types, jobs, seed) for policy in ("solo-d", "colocated", "rollmux", "default")}


def _replay(policy: str, types: str, jobs: int, seed: int) -> ReplayResult:
    chosen = setup(policy, seed)
    arrivals = [(at, chosen.prepare(job)) for at, job in _draw(types, jobs, generator(seed, "mux", "testbed", types))]
    return RealReplay(chosen.decider, chosen.state, reality=Reality(Migration())).run(arrivals)


def _draw(types: str, jobs: int, draw: random.Random) -> list[tuple[float, MuxJob]]:
    """Draw jobs with Poisson arrivals, lognormal durations and SLOs from U(1, 2)."""
    times = sorted(draw.uniform(0, SPAN_H * jobs / JOBS) * 3600 for _ in range(jobs))
    arrivals = []
    for number, at in enumerate(times):
        kind = TYPES[draw.choice(types)]
        profile = kind.profile(nodes=2 if draw.random() < WIDE else 1)
        hours = math.exp(draw.gauss(math.log(MEAN_H) - SPREAD**2 / 2, SPREAD))
        arrivals.append(
            (at, MuxJob(f"{number}", profile, draw.uniform(1, 2), math.ceil(hours * 3600 / profile.solo_s)))
        )
    return arrivals


EXPERIMENT = Experiment(TESTBED, measure)
