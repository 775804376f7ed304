"""Figure 19, phase by phase: in the group D x 2 + E the job E is killed and comes back without slowing the others."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.job import MuxJob
from rollweave.mux.simulation.phases import PhaseReplay
from rollweave.mux.simulation.replay import Failure
from rollweave_experiments.claims.rollmux import FAILURE
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.rollmux.types import TYPES

KILLED_S, BACK_S = 2180.0, 4480.0
ITERATIONS = 20


def measure(seed: int, small: bool) -> Measurement:
    replay = PhaseReplay(Scheduler())
    # An SLO of 1.1 makes Algorithm 1 build the group of the figure: one train node, a rollout node for each job.
    jobs = [MuxJob(name, TYPES[name[0]].profile(), 1.1, ITERATIONS) for name in ("D1", "D2", "E")]
    replay.run([(0.0, job) for job in jobs], [Failure("E", KILLED_S, BACK_S)])
    before = _iteration(replay, 0.0, KILLED_S)
    values = {
        "iteration of D while E is gone / before": _iteration(replay, KILLED_S, BACK_S) / before,
        "iteration of D after E is back / before": _iteration(replay, BACK_S, 1e9) / before,
        "iterations of E lost": float(len(replay.ends["E"]) - ITERATIONS),
    }
    bars = dict(zip(values, (1.0001, 1.01, 0.5), strict=True))
    return Measurement(values, {label: value <= bars[label] for label, value in values.items()})


def _iteration(replay: PhaseReplay, since: float, until: float) -> float:
    """The mean iteration of the two other jobs, over the iterations within that time."""
    ends = [pair for job in ("D1", "D2") for pair in pairwise(replay.ends[job])]
    return fmean(end - start for start, end in ends if since <= start and end <= until)


EXPERIMENT = Experiment(FAILURE, measure)
