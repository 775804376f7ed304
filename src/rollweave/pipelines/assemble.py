"""Puts a job's control plane together around engines, a trainer and hosts, and drives it.

The same assembly serves the inline runtime, Ray, the simulation and a replay: only what joins the fleet and the
dispatcher differs.

Drive: runs a pipeline until it ends, the user has seen enough, or something fails. Each way a checkpoint is left. A
session drives a real run with it, a replay the recording of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollweave.clock import Clock
from rollweave.config.control import (
    ArealPipeline,
    ControlConfig,
    OneOffPipeline,
    RollArtPipeline,
    SamplingConfig,
    SyncPipeline,
    SyncPlusPipeline,
)
from rollweave.engines.protocol import Sampling
from rollweave.errors import RollweaveError, WorkerDied, first_cause
from rollweave.fleet.fleet import Fleet
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.events import Emitter, Recorder
from rollweave.pipelines.checkpoints import Checkpoints, RunState
from rollweave.pipelines.feed import Feed
from rollweave.pipelines.journal import Journal, OnRow, OnTrajectories
from rollweave.pipelines.loop import Loop
from rollweave.pipelines.one_off import one_off
from rollweave.pipelines.permits import PermitGate, PermitSource, Tail
from rollweave.pipelines.rollart import rollart
from rollweave.pipelines.sync import sync
from rollweave.rewards.dispatch import RewardBackend
from rollweave.rollout.concurrency import AdaptiveConcurrency
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.evaluation import Evaluator
from rollweave.rollout.groups import RolloutSettings
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.rollout.scoring import HostBackend, Scoring
from rollweave.rollout.staleness import StalenessBound
from rollweave.tasks import Cursor, Task, TaskSource
from rollweave.training.protocol import Trainer
from rollweave.weights.store import WeightsLost

Pipeline = Callable[[Loop, int, int], Awaitable[None]]


def pipeline(control: ControlConfig) -> Pipeline:
    """The loop of the mode."""
    match control.pipeline:
        case SyncPipeline() | SyncPlusPipeline():
            return sync
        case OneOffPipeline() | RollArtPipeline(sync_point="after_batch"):
            return one_off
    return rollart  # and `areal`, whose scheduler looks at staleness only at the start


def assemble(
    control: ControlConfig,
    fleet: Fleet,
    dispatcher: Dispatcher,
    trainer: Trainer,
    source: TaskSource,
    stop_tokens: tuple[int, ...],
    checkpoints: Path,
    clock: Clock,
    recorder: Recorder,
    *,
    permits: PermitSource | None = None,
    rewards: RewardBackend | None = None,
    on_row: Sequence[OnRow] = (),
    on_trajectories: Sequence[OnTrajectories] = (),
) -> Drive:
    """`recorder` hears events as they happen; `on_row` and `on_trajectories` once a step. `permits`: none if the pools
    are this job's own. `rewards`: what computes them; none if the hosts do."""
    fleet.listen(recorder)
    dispatcher.listen(recorder)
    state = RunState()
    scoring = Scoring(rewards or HostBackend(dispatcher, recorder, control.rollout.max_retries), recorder)
    settings = _settings(control, stop_tokens)
    bound = StalenessBound(control.pipeline.alpha, control.rollout.groups_per_step)
    scheduler = RolloutScheduler(settings, bound, Cursor(source), dispatcher, scoring, clock, recorder)
    journal = Journal(clock, scheduler, fleet, recorder, on_row, on_trajectories)
    timeout = control.rollout.deadlines.weight_sync
    weights = WeightSync(
        trainer, fleet, clock, recorder, timeout, control.weights.transfer, control.weights.probe_tolerance
    )
    tasks = source.held_out(control.evaluation.tasks) if control.evaluation.every else []
    evaluation = evaluator(control, tasks, stop_tokens, dispatcher, scoring, clock, recorder)
    tail = Tail(fleet, fleet.size, permits, scheduler, recorder) if permits is not None and fleet.size > 1 else None
    loop = Loop(
        scheduler,
        trainer,
        weights,
        journal,
        PermitGate(permits, fleet, evaluation, journal, tail, control.sleep),
        evaluation,
        Checkpoints(checkpoints, control.checkpoint, scheduler, trainer, weights, state, recorder),
        state,
        Feed(scheduler, trainer, journal, recorder) if control.stream else None,
    )
    slots = control.rollout.slots
    floor = min(slots, max(control.rollout.group_size, slots // 16))
    adaptive = AdaptiveConcurrency(fleet, dispatcher, clock, recorder, floor, ceiling=slots)
    concurrency = None if control.rollout.concurrency == "fixed" else adaptive
    return Drive(pipeline(control), control.steps, loop, concurrency, recorder)


def _settings(control: ControlConfig, stop_tokens: tuple[int, ...]) -> RolloutSettings:
    sampling = _sampling(control.rollout.sampling, stop_tokens)
    settings = RolloutSettings(control.rollout, sampling, control.seed, try_alone=control.try_alone)
    match control.pipeline:
        case RollArtPipeline(policy=policy, max_requeues=most):
            return replace(settings, policy=policy, max_requeues=most)
        case ArealPipeline():
            return replace(settings, policy="start_only")
    return settings


def evaluator(
    control: ControlConfig,
    tasks: Sequence[Task],
    stop_tokens: tuple[int, ...],
    dispatcher: Dispatcher,
    scoring: Scoring,
    clock: Clock,
    recorder: Emitter,
) -> Evaluator:
    """Plays these tasks greedily, with the limits of a job."""
    rollout = control.rollout
    sampling = replace(_sampling(rollout.sampling, stop_tokens), temperature=0.0, top_p=1.0, top_k=0)
    return Evaluator(control.evaluation, rollout, tasks, sampling, dispatcher, scoring, clock, recorder)


def _sampling(config: SamplingConfig, stop_tokens: tuple[int, ...]) -> Sampling:
    return Sampling(config.max_tokens, config.temperature, config.top_p, config.top_k, stop_tokens, config.stop)


def _trainer_died(error: RollweaveError | ExceptionGroup[Exception]) -> bool:
    """Whether that is what happened, and nothing besides but what may follow from it."""
    if isinstance(error, ExceptionGroup):
        return all(isinstance(cause, RollweaveError | ExceptionGroup) for cause in error.exceptions) and any(
            _trainer_died(cause) for cause in error.exceptions if isinstance(cause, RollweaveError | ExceptionGroup)
        )
    return isinstance(error, WeightsLost) or (isinstance(error, WorkerDied) and error.worker.startswith("trainer"))


@dataclass(slots=True)
class Drive:
    """A loop, its pipeline, and what runs beside it."""

    pipeline: Pipeline
    steps: int
    loop: Loop
    concurrency: AdaptiveConcurrency | None
    recorder: Emitter
    _running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """To the last step; however it ends, what has been trained is saved if it can be."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._running = tasks.create_task(self.advance(), name="pipeline")
                await asyncio.wait([self._running])
        except BaseException as error:  # raised again; a cancelled run is rescued too
            if not self.loop.state.stopping:
                cause = first_cause(error) if isinstance(error, BaseExceptionGroup) else error
                self.recorder.emit("run.failed", error=str(cause))
                await self.loop.checkpoints.rescue()
            raise
        else:
            await self.loop.checkpoints.save()
        finally:
            self.loop.scheduler.close()

    async def advance(self) -> None:
        """From the version that the loop has to the last step; saves only when a checkpoint is due. If the trainer
        dies, it goes back to the newest checkpoint."""
        died = False
        while True:
            try:
                if died:
                    await self.loop.go_back()
                return await self._stretch()
            except (RollweaveError, ExceptionGroup) as error:
                if not _trainer_died(error) or not self.loop.checkpoints.may_go_back():
                    raise
                died = True

    async def _stretch(self) -> None:
        """To the last step, or until the trainer dies."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self.loop.weights.welcome(), name="newcomers")]
            if self.concurrency is not None:
                beside.append(tasks.create_task(self.concurrency.run(), name="concurrency"))
            await self.pipeline(self.loop, self.loop.state.version, self.steps)
            for task in beside:
                task.cancel()

    def stop(self) -> None:
        """End in order: what is being trained is finished, what is being played is left to the next session."""
        self.recorder.emit("run.stop")
        if self.loop.state.stop() and self._running is not None:
            self._running.cancel()
