"""Jobs whose responses grow or shrink during training: compares RollMux's stop-and-resubmit with hourly regrouping."""

from __future__ import annotations

from rollweave.mux.baselines import setup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.simulation.jobs import JobMix, draw_jobs
from rollweave.mux.simulation.replay import ReplayResult
from rollweave.mux.simulation.trace import TraceJob, generate
from rollweave.seeds import generator
from rollweave_experiments.claims.rollmux import DRIFT
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.rollmux.reality import Drift, Reality, RealReplay

CURVE = {197.0: 0.5, 300.0: 1.5, 419.0: 4.0}
"""The growth at factor 1 of a 7B, 14B and 32B model; the key is the seconds that a move of the model takes."""
SETS = {
    "increasing": (0.0, 0.5, 1.0, 1.5),
    "decreasing": (0.0, -0.5, -1.0, -1.5),
    "mixed": (-1.5, -1, -0.5, 0, 0.5, 1, 1.5),
}
OBSERVED_EVERY_S = 900.0


def measure(seed: int, small: bool) -> Measurement:
    trace = generate(6 if small else 100, seed)
    values: dict[str, float] = {}
    holds: dict[str, bool] = {}
    for name, factors in SETS.items():
        ours, oracle = (_replay(policy, trace, factors, seed) for policy in ("rollmux", "regroup"))
        cost, kept = ours.ledger.dollars / oracle.ledger.dollars, 100 * ours.slo_attainment
        values |= {f"cost / regroup, {name}": cost, f"SLO kept, {name}": kept}
        holds |= {f"cost / regroup, {name}": 0.9 <= cost <= 1.4, f"SLO kept, {name}": kept >= 90}
    return Measurement(values, holds)


def _replay(policy: str, trace: list[TraceJob], factors: tuple[float, ...], seed: int) -> ReplayResult:
    chosen = setup(policy, seed)
    jobs = draw_jobs(trace, JobMix(), seed)
    reality = Reality(drifts=_drifts(jobs, factors, seed), every_s=OBSERVED_EVERY_S)
    arrivals = [(line.submit_s, job) for line, job in zip(trace, jobs, strict=True)]
    return RealReplay(chosen.decider, chosen.state, reality=reality).run(arrivals)


def _drifts(jobs: list[MuxJob], factors: tuple[float, ...], seed: int) -> dict[str, Drift]:
    """The drift of each job. Profiles are measured at the longest responses of a job. At factor 1 a growing job ends
    there; a shrinking job begins there, and shrinks by as much as the growing one grows."""
    drifts = {}
    for job in jobs:
        factor = generator(seed, "mux", "drift", job.id).choice(factors)
        curve = CURVE[job.profile.move_s]
        grown = 1 + abs(factor) * curve
        drifts[job.id] = Drift(1 / (1 + curve), grown / (1 + curve)) if factor >= 0 else Drift(1.0, 1 / grown)
    return drifts


EXPERIMENT = Experiment(DRIFT, measure)
