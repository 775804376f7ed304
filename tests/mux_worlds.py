"""Small worlds for the tests of the multiplexing simulation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollweave.mux.model.job import Job
from rollweave.mux.model.profile import JobProfile
from rollweave.mux.simulation.classes import Workload
from rollweave.mux.simulation.simulate import Scenario
from rollweave.mux.simulation.trace import TraceJob
from rollweave.mux.simulation.trace_model import generate


def scenario(jobs: int = 60, seed: int = 0, kind: str = "mixed", phases: bool = False, **workload: bool) -> Scenario:
    return Scenario(generate(jobs, seed), Workload(kind, **workload), phases=phases)  # type: ignore[arg-type]


def plain_job(name: str, t_roll: float, t_train: float, slo: float = 2.0, n_iters: int = 10, **profile: float) -> Job:
    return Job(name, JobProfile(t_roll, t_train, **profile), slo, n_iters)  # type: ignore[arg-type]


def line(submit_s: float, duration_s: float = 3600.0) -> TraceJob:
    return TraceJob(submit_s, duration_s, 1)


def recorded_traces() -> Path:
    """The folder of recorded traces, or a skip that says how to name it."""
    here = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("ROLLWEAVE_TRACES", here.parent / "shared" / "data" / "traces"))
    if not list(folder.glob("*.csv")):
        pytest.skip("no recorded traces here: set ROLLWEAVE_TRACES to a folder of submit_s,duration_s,gpus files")
    return folder
