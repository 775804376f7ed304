"""Measures the cost relative to Opt for each class of jobs, on a trace with the statistics of the paper's trace."""

from __future__ import annotations

from rollweave.mux.simulation.jobs import JobMix
from rollweave.mux.simulation.replay import ReplayResult
from rollweave.mux.simulation.simulate import TraceScenario, simulate
from rollweave.mux.simulation.trace import generate
from rollweave_experiments.claims.rollmux import SIMULATION
from rollweave_experiments.frame import Experiment, Measurement, Plot

NAMES = {"bl": "BL", "rh": "RH", "th": "TH", "mixed": "Mixed"}
OURS = ("rollmux", "default", "random", "most-idle")


def measure(seed: int, small: bool) -> Measurement:
    runs = {kind: _runs(kind, seed, 12 if small else 150) for kind in NAMES}
    over = {
        policy: {kind: runs[kind][policy].ledger.dollars / runs[kind]["opt"].ledger.dollars for kind in NAMES}
        for policy in OURS
    }
    mixed = runs["mixed"]
    values = {f"RollMux / Opt, {name}": over["rollmux"][kind] for kind, name in NAMES.items()}
    values |= {
        "SLO kept by RollMux": 100 * min(runs[kind]["rollmux"].slo_attainment for kind in NAMES),
        "SLO kept by Random, Mixed": 100 * mixed["random"].slo_attainment,
        "SLO kept by Most-idle, Mixed": 100 * mixed["most-idle"].slo_attainment,
        "Random / Opt, Mixed": over["random"]["mixed"],
        "Most-idle / Opt, Mixed": over["most-idle"]["mixed"],
    }
    holds = {label: values[label] < 80 for label in ("SLO kept by Random, Mixed", "SLO kept by Most-idle, Mixed")}
    holds |= {
        label: values[label] > values["RollMux / Opt, Mixed"]
        for label in ("Random / Opt, Mixed", "Most-idle / Opt, Mixed")
    }
    series = {policy: tuple((NAMES[kind], ratio) for kind, ratio in ratios.items()) for policy, ratios in over.items()}
    return Measurement(values, holds, (Plot("Cost over Opt", "", "ratio", series, bars=True),))


def _runs(kind: str, seed: int, jobs: int) -> dict[str, ReplayResult]:
    scenario = TraceScenario(generate(jobs, seed), JobMix(kind))
    return {policy: simulate(scenario, policy, seed) for policy in (*OURS, "opt")}


EXPERIMENT = Experiment(SIMULATION, measure)
