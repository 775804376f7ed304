"""Runs the jobs both ways and compares what came out."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.mux_real.watch import Watch
from rollweave.mux.daemon.client import Client
from rollweave.mux.daemon.store import StateFolder
from rollweave.observability.events import read_events

CLI = (sys.executable, "-m", "rollweave.cli.main")


@dataclass(frozen=True, slots=True)
class JobResult:
    name: str
    t_roll: float
    """Worst case, by the profiler."""
    t_train: float
    solo: float
    """Seconds an iteration takes alone."""
    planned: float
    """What the scheduler promised for it in company, at worst."""
    shared: float
    """What it took while all jobs ran."""
    slo: float
    cold: float
    warm: float
    """The slowest of all warm starts."""
    identical: bool

    @property
    def slow_down(self) -> float:
        return self.shared / self.solo


@dataclass(frozen=True, slots=True)
class Case:
    jobs: list[JobResult]
    steps: int
    together_seconds: float
    """How long all of them ran at once: what `shared` was measured in."""
    whole_seconds: float
    """From the first submission to the last end, profiling and cold starts included."""
    solo_whole_seconds: float
    """The same alone: the three processes one after the other."""
    profile_seconds: float

    @property
    def solo_rate(self) -> float:
        """Steps per hour, one job after the other."""
        return 3600 / fmean(job.solo for job in self.jobs)

    @property
    def shared_rate(self) -> float:
        return sum(3600 / job.shared for job in self.jobs)

    @property
    def speed_up(self) -> float:
        return self.shared_rate / self.solo_rate


@dataclass(frozen=True, slots=True)
class Solo:
    iteration: float
    whole: float


def measure(jobs: Sequence[Path], workplace: Path, steps: int, slo: float) -> Case:
    alone = [_alone(job, workplace / "alone" / job.stem, steps) for job in jobs]
    state = StateFolder(workplace / "daemon")
    _cli("daemon", "start", "--policy", "per-iteration", "--state", str(state.path))
    try:
        for job in jobs:
            _cli("submit", str(job), f"training.steps={steps}", "--slo", str(slo), "--state", str(state.path))
        watch = Watch(Client(state), steps)
        views = watch.until_done()
    finally:
        _cli("daemon", "stop", "--state", str(state.path))
    return Case(
        [
            _result(job, view, solo, watch, weights(workplace / "alone" / job.stem))
            for job, view, solo in zip(jobs, views, alone, strict=True)
        ],
        steps,
        watch.end - watch.begin,
        max(view["ended"] for view in views) - min(view["submitted"] for view in views),
        sum(solo.whole for solo in alone),
        max(_event(view, "profiled") for view in views) - min(view["submitted"] for view in views),
    )


def _result(job: Path, view: dict[str, Any], alone: Solo, watch: Watch, learnt: str) -> JobResult:
    return JobResult(
        job.stem,
        view["t_roll"],
        view["t_train"],
        alone.iteration,
        watch.planned[view["id"]],
        watch.iteration(view["id"]),
        view["slo"],
        view["cold_start_seconds"],
        view["warm_start_seconds"],
        weights(Path(view["run"])) == learnt,
    )


def _alone(job: Path, run: Path, steps: int) -> Solo:
    """Solo-D: both cores are the job's own. Its phases take turns, so one of them idles at any time."""
    began = time.monotonic()
    _cli("train", str(job), f"training.steps={steps}", "--out", str(run))
    whole = time.monotonic() - began
    events = read_events(run / "events.jsonl")
    first = next(event.time for event in events if event.name == "phase.begin")
    last = max(event.time for event in events if event.name == "step.end")
    return Solo((last - first) / steps, whole)


def weights(run: Path) -> str:
    """A digest of what was learnt."""
    newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    return hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()


def _event(view: dict[str, Any], name: str) -> float:
    return next(float(at) for at, what, *_ in view["events"] if what == name)


def _cli(*words: str) -> None:
    done = subprocess.run([*CLI, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise RuntimeError(f"rollweave {' '.join(words)}: {done.stderr}")
