"""Small worlds for the tests of the multiplexing simulation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollweave.mux.model.job import JobProfile, MuxJob
from rollweave.mux.simulation.jobs import JobMix
from rollweave.mux.simulation.simulate import TraceScenario
from rollweave.mux.simulation.trace import TraceJob, generate


def scenario(
    jobs: int = 60, seed: int = 0, kind: str = "mixed", phases: bool = False, **workload: bool
) -> TraceScenario:
    return TraceScenario(generate(jobs, seed), JobMix(kind, **workload), phases=phases)  # type: ignore[arg-type]


def plain_job(
    name: str, t_roll: float, t_train: float, slo: float = 2.0, n_iters: int = 10, **profile: float
) -> MuxJob:
    return MuxJob(name, JobProfile(t_roll, t_train, **profile), slo, n_iters)  # type: ignore[arg-type]


def line(submit_s: float, duration_s: float = 3600.0) -> TraceJob:
    return TraceJob(submit_s, duration_s, 1)


def recorded_traces() -> Path:
    """The folder of recorded traces, or a skip that says how to name it."""
    here = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("ROLLWEAVE_TRACES", here.parent / "shared" / "data" / "traces"))
    if not list(folder.glob("*.csv")):
        pytest.skip("no recorded traces here: set ROLLWEAVE_TRACES to a folder of submit_s,duration_s,gpus files")
    return folder
