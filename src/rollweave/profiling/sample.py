"""Runs a job for a few real steps, and keeps its episodes and what its steps and weight updates took.

The run uses the production runtime and pipeline, but keeps everything in memory and prints nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rollweave.clock import Clock, run_wall
from rollweave.config.control import PipelineConfig
from rollweave.config.hardware import Observed, WeightTimes
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


@dataclass(frozen=True, slots=True)
class Sample:
    """What the measured steps of a short run show."""

    observed: Observed
    trajectories: list[Trajectory]
    weights: WeightTimes
    round_trip: float
    """Seconds of a message from a process to the engine and back."""


def play(blueprint: Blueprint, pipeline: PipelineConfig, steps: int) -> Sample:
    """Run the job with this pipeline: `steps` measured steps after a few that are not measured."""
    blueprint = replace(blueprint, job=blueprint.job.model_copy(update={"pipeline": pipeline}))
    with tempfile.TemporaryDirectory(prefix="rollweave-profile-") as folder:
        return run_wall(lambda clock: _run(blueprint, steps, Path(folder), clock))


async def _run(blueprint: Blueprint, steps: int, folder: Path, clock: Clock) -> Sample:
    from rollweave.policies.chat import ChatFormat

    job = blueprint.job
    recorder = MemoryRecorder(clock.now)
    rows: list[MetricsRow] = []
    trajectories: list[Trajectory] = []
    fleet = Fleet()
    dispatcher = Dispatcher.of(job.rollout, fleet)
    async with start_runtime(blueprint, fleet, dispatcher, clock, folder, recorder) as trainer:
        drive = assemble(
            job.control.model_copy(update={"steps": SKIPPED + steps}),
            fleet,
            dispatcher,
            trainer,
            source(job.environment, job.seed, Path()),
            ChatFormat.of(blueprint.policy).stop_tokens,
            folder,
            clock,
            recorder,
            on_row=[lambda step, row: rows.append(row)],
            on_trajectories=[lambda step, batch: trajectories.extend(batch)],
        )
        await drive.advance()
        round_trip = await _round_trip(fleet.serving()[0].control, clock)
        drive.loop.scheduler.close()
    weights = WeightTimes(
        publish=_mean_seconds(recorder, "weights.publish"),
        prepare=_mean_seconds(recorder, "weights.stage"),
        commit=_mean_seconds(recorder, "weights.commit"),
    )
    measured = [row for row in rows if "time/step" in row][SKIPPED:]
    return Sample(_observed(measured), trajectories, weights, round_trip)


def _mean_seconds(recorder: MemoryRecorder, event: str) -> float:
    seconds: list[Any] = [one.data["seconds"] for one in recorder.named(event)[SKIPPED:]]
    return round(fmean(seconds), 6) if seconds else 0.0


def _observed(rows: Sequence[MetricsRow]) -> Observed:
    def mean(key: str) -> float:
        return fmean(_number(row, key) for row in rows)

    return Observed(
        step_seconds=mean("time/step"),
        get_batch_seconds=mean("time/get_batch"),
        train_seconds=mean("time/train"),
        engine_busy_seconds=fmean((1 - _number(row, "idle/engine")) * _number(row, "time/step") for row in rows),
    )


def _number(row: MetricsRow, key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


async def _round_trip(engine: EngineControl, clock: Clock) -> float:
    """Measure a call that takes the engine no time of its own."""
    times = []
    for _ in range(QUESTIONS):
        began = clock.now()
        await engine.stats()
        times.append(clock.now() - began)
    return round(median(times), 6)
