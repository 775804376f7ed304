"""Runs a job for a few real steps and keeps its episodes, its metrics rows and its weight updates.

The run uses the production runtime and pipeline, but keeps everything in memory and prints nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rollweave.clock import Clock, run_wall
from rollweave.config.hardware import Observed
from rollweave.config.job import Job
from rollweave.engines.protocol import EngineControl
from rollweave.environments.registry import source
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import MemoryRecorder
from rollweave.pipelines.assemble import assemble
from rollweave.pipelines.journal import MetricsRow
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.runtimes.blueprint import Blueprint, start_runtime
from rollweave.trajectory import Trajectory

QUESTIONS = 20

SKIPPED = 4
"""Steps that are not measured: they fill the pipeline and warm up the processes, and a spare engine starts."""


@dataclass(slots=True)
class Sample:
    """The measured steps of a short run."""

    rows: list[MetricsRow]
    trajectories: list[Trajectory]
    publishes: list[dict[str, Any]]
    stagings: list[dict[str, Any]]
    """The data of the events of each new version, here and in the fields around."""
    commits: list[dict[str, Any]]
    round_trip: float
    """Seconds of a message from a process to the engine and back."""

    def observed(self) -> Observed:
        return Observed(
            step_seconds=self.mean("time/step"),
            get_batch_seconds=self.mean("time/get_batch"),
            train_seconds=self.mean("time/train"),
            engine_busy_seconds=fmean((1 - _number(r, "idle/engine")) * _number(r, "time/step") for r in self.rows),
        )

    def mean(self, key: str) -> float:
        return fmean(_number(row, key) for row in self.rows)


def play(job: Job, blueprint: Blueprint, steps: int) -> Sample:
    """Run `steps` measured steps after a few that are not measured."""
    blueprint = Blueprint(job, blueprint.policy, blueprint.environments, blueprint.rewards)
    with tempfile.TemporaryDirectory(prefix="rollweave-profile-") as folder:
        return run_wall(lambda clock: _run(job, blueprint, steps, Path(folder), clock))


async def _run(job: Job, blueprint: Blueprint, steps: int, folder: Path, clock: Clock) -> Sample:
    from rollweave.policies.chat import ChatFormat

    recorder = MemoryRecorder(clock.now)
    rows: list[MetricsRow] = []
    trajectories: list[Trajectory] = []
    stop_tokens = ChatFormat.of(blueprint.policy).stop_tokens
    tasks = source(job.environment, job.seed, Path())
    control = job.control.model_copy(update={"steps": SKIPPED + steps})
    fleet = Fleet()
    dispatcher = Dispatcher.of(job.rollout, fleet)
    async with start_runtime(blueprint, fleet, dispatcher, clock, folder, recorder) as trainer:
        drive = assemble(
            control,
            fleet,
            dispatcher,
            trainer,
            tasks,
            stop_tokens,
            folder,
            clock,
            recorder,
            on_row=[lambda step, row: rows.append(row)],
            on_trajectories=[lambda step, batch: trajectories.extend(batch)],
        )
        await drive.advance()
        round_trip = await _round_trip(fleet.serving()[0].control, clock)
        drive.loop.scheduler.close()
    return Sample(
        _steady(rows),
        trajectories,
        [event.data for event in recorder.named("weights.publish")][SKIPPED:],
        [event.data for event in recorder.named("weights.stage")][SKIPPED:],
        [event.data for event in recorder.named("weights.commit")][SKIPPED:],
        round_trip,
    )


async def _round_trip(engine: EngineControl, clock: Clock) -> float:
    """Measure a call that takes the engine no time of its own."""
    times = []
    for _ in range(QUESTIONS):
        began = clock.now()
        await engine.stats()
        times.append(clock.now() - began)
    return round(median(times), 6)


def _steady(rows: Sequence[MetricsRow]) -> list[MetricsRow]:
    return [row for row in rows if "time/step" in row][SKIPPED:]


def _number(row: MetricsRow, key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
