"""Measures how the work of a placement grows with the number of running jobs; `bench.mux` measures its time."""

from __future__ import annotations

from statistics import fmean

from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.policy import DEFAULT, ROLLMUX, MuxPolicy
from rollweave.seeds import generator
from rollweave_experiments.claims.rollmux import DECISIONS
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.rollmux.crowd import crowd, draw_job

FEW, MANY = 100, 2000
ARRIVALS = 40


def measure(seed: int, small: bool) -> Measurement:
    few, many = (10, 40) if small else (FEW, MANY)
    paper, ours = ({n: _looked_at(policy, n, seed) for n in (few, many)} for policy in (ROLLMUX, DEFAULT))
    values = {
        "Algorithm 1: looked at with 2,000 jobs / with 100": paper[many] / paper[few],
        "`default`: looked at with 2,000 jobs / with 100": ours[many] / ours[few],
        "Algorithm 1: looked at with 2,000 jobs": paper[many],
    }
    bars = dict(zip(values, (many / few, many / few, many), strict=True))
    return Measurement(values, {label: value <= bars[label] for label, value in values.items()})


def _looked_at(policy: MuxPolicy, running: int, seed: int) -> float:
    """The mean number of groups and places that an arrival considers: every refusal, and the place that it takes."""
    draw = generator(seed, "decisions", running)
    state, scheduler = crowd(policy, running, draw), Scheduler(policy)
    plans = [scheduler.arrive(state, draw_job(f"new {number}", draw), 60.0) for number in range(ARRIVALS)]
    return fmean(len(plan.rejections) + 1 for plan in plans)


EXPERIMENT = Experiment(DECISIONS, measure)
