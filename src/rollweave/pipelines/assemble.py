"""Puts a job's control plane together around whatever generates, trains and plays.

The same assembly serves the inline runtime, Ray and the simulation: only the machinery differs.

Drive: runs a pipeline until it ends, somebody has seen enough, or something fails. Each way a checkpoint is left.

A session drives real machinery with it, a replay the recording of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollweave.clock import Clock, Waiting
from rollweave.config.environments import PythonEnvironmentConfig
from rollweave.config.job import ArealPipeline, Job, OneOffPipeline, RollArtPipeline, SyncPipeline, SyncPlusPipeline
from rollweave.engines.protocol import Engine, Sampling
from rollweave.fleet.proxy import LLMProxy, MovingProxy
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.events import Emitter, Recorder
from rollweave.pipelines.journal import Journal, OnRow, OnTrajectories
from rollweave.pipelines.loop import Milestones, Parts
from rollweave.pipelines.one_off import one_off
from rollweave.pipelines.permits import Alone, PermitSource, Tail
from rollweave.pipelines.rollart import rollart
from rollweave.pipelines.sync import sync
from rollweave.rewards.dispatch import RewardBackend
from rollweave.rollout.concurrency import AdaptiveConcurrency
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.evaluation import Evaluator
from rollweave.rollout.scheduler import RolloutScheduler, RolloutSettings, StalenessPolicy
from rollweave.rollout.scoring import HostBackend, Scoring
from rollweave.rollout.staleness import StalenessBound
from rollweave.tasks import Cursor, TaskSource
from rollweave.training.protocol import Trainer

Pipeline = Callable[[Parts, int, int], Awaitable[None]]


def pipeline(job: Job) -> Pipeline:
    """The loop of the job's mode, and what runs beside it."""
    return _loop(job) if job.rollout.concurrency == "fixed" else _adapting(_loop(job))


def _loop(job: Job) -> Pipeline:
    match job.pipeline:
        case SyncPipeline() | SyncPlusPipeline():
            return sync
        case OneOffPipeline() | RollArtPipeline(sync_point="after_batch"):
            return one_off
    return rollart  # and `areal`, whose scheduler looks at staleness only at the start


def _adapting(loop: Pipeline) -> Pipeline:
    async def run(parts: Parts, first: int, last: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            adapting = tasks.create_task(parts.concurrency.run(), name="concurrency")
            await loop(parts, first, last)
            adapting.cancel()

    return run


async def nobody_else() -> list[Waiting]:
    return []


@dataclass(slots=True)
class Machinery:
    """What a runtime provides: things that generate and train, and a dispatcher with hosts attached."""

    engines: Sequence[Engine]
    trainer: Trainer
    dispatcher: Dispatcher
    waits: Callable[[], Awaitable[list[Waiting]]] = nobody_else
    """Who waits in other processes: hosts have clocks of their own."""
    turns: PermitSource = field(default_factory=Alone)
    proxy: LLMProxy | None = None
    """If it is in this process."""
    rewards: RewardBackend | None = None
    """What computes rewards; None: the hosts."""


@dataclass(slots=True)
class Listeners:
    """Who hears of a run: events as they happen, rows and trajectories once a step."""

    recorder: Recorder
    on_row: Sequence[OnRow] = ()
    on_trajectories: Sequence[OnTrajectories] = ()


def assemble(
    job: Job,
    machinery: Machinery,
    source: TaskSource,
    stop_tokens: tuple[int, ...],
    checkpoints: Path,
    clock: Clock,
    listeners: Listeners,
) -> Parts:
    sampling = training_sampling(job, stop_tokens)
    recorder = listeners.recorder
    machinery.dispatcher.listen(recorder)
    rewards = machinery.rewards or HostBackend(machinery.dispatcher, recorder, job.rollout.max_retries)
    scoring = Scoring(rewards, recorder)
    scheduler = RolloutScheduler(
        RolloutSettings(
            group_size=job.rollout.group_size,
            sampling=sampling,
            seed=job.seed,
            get_batch_timeout=job.rollout.deadlines.get_batch,
            max_retries=job.rollout.max_retries,
            retry_backoff=job.rollout.retry_backoff,
            policy=_policy(job),
            max_requeues=job.pipeline.max_requeues if isinstance(job.pipeline, RollArtPipeline) else 0,
            redundant_groups=job.rollout.redundant_groups,
            redundant_members=job.rollout.redundant_members,
            filter=job.rollout.filter,
            prompt_replication=job.rollout.prompt_replication,
            try_alone=_check_command(job),
        ),
        StalenessBound(job.alpha, job.rollout.groups_per_step),
        Cursor(source),
        machinery.dispatcher,
        scoring,
        clock,
        recorder,
    )
    journal = Journal(clock, scheduler, machinery.engines, recorder, listeners.on_row, listeners.on_trajectories)
    return Parts(
        scheduler=scheduler,
        trainer=machinery.trainer,
        weights=WeightSync(
            machinery.trainer,
            machinery.engines,
            clock,
            recorder,
            timeout=job.rollout.deadlines.weight_sync,
            transfer=job.weights.transfer,
        ),
        journal=journal,
        evaluator=_evaluator(job, machinery.dispatcher, scoring, source, stop_tokens, clock, recorder),
        milestones=Milestones(job.evaluation.every, job.evaluation.target, job.checkpoint.every, job.checkpoint.keep),
        checkpoints=checkpoints,
        turns=machinery.turns,
        engines=machinery.engines,
        tail=_tail(machinery, scheduler, recorder),
        concurrency=AdaptiveConcurrency(
            machinery.engines,
            machinery.dispatcher,
            clock,
            recorder,
            floor=max(job.rollout.group_size, job.rollout.slots // 16),
            ceiling=job.rollout.slots,
        ),
    )


def _tail(machinery: Machinery, scheduler: RolloutScheduler, recorder: Emitter) -> Tail | None:
    """Where others may wait for nodes, and there is more than one."""
    if not machinery.turns.shared or len(machinery.engines) == 1 or not isinstance(machinery.proxy, MovingProxy):
        return None
    return Tail(machinery.proxy, len(machinery.engines), machinery.turns, scheduler, recorder)


def _policy(job: Job) -> StalenessPolicy:
    match job.pipeline:
        case RollArtPipeline(policy=policy):
            return policy
        case ArealPipeline():
            return "start_only"
    return "wait"


def _evaluator(
    job: Job,
    dispatcher: Dispatcher,
    scoring: Scoring,
    source: TaskSource,
    stop_tokens: tuple[int, ...],
    clock: Clock,
    recorder: Emitter,
) -> Evaluator | None:
    tasks = source.held_out(job.evaluation.tasks) if job.evaluation.every else []
    if not tasks:
        return None
    rollout = job.rollout
    return Evaluator(
        tasks,
        greedy(job, stop_tokens),
        dispatcher,
        scoring,
        clock,
        recorder,
        rollout.max_retries,
        rollout.deadlines.get_batch,
    )


def _check_command(job: Job) -> str:
    config = job.environment
    name = config.target if isinstance(config, PythonEnvironmentConfig) else config.type
    return " ".join(["rollweave env check", name, *(f"--reward {reward.function}" for reward in job.rewards)])


def training_sampling(job: Job, stop_tokens: tuple[int, ...]) -> Sampling:
    config = job.rollout.sampling
    return Sampling(
        config.max_tokens, config.temperature, config.top_p, config.top_k, stop_tokens, stop_strings=config.stop
    )


def greedy(job: Job, stop_tokens: tuple[int, ...]) -> Sampling:
    config = job.rollout.sampling
    return Sampling(config.max_tokens, temperature=0.0, stop_tokens=stop_tokens, stop_strings=config.stop)


class Drive:
    def __init__(self, job: Job, parts: Parts, recorder: Emitter) -> None:
        self._job = job
        self._parts = parts
        self._recorder = recorder
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """From the version that `parts` hold to the last step of the job."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._running = tasks.create_task(self._pipeline(), name="pipeline")
                await asyncio.wait([self._running])
        except BaseException as error:
            if not self._parts.stopping:
                self._recorder.emit("run.failed", error=str(error))
                await self._parts.rescue()
            raise
        else:
            await self._parts.save_checkpoint()
        finally:
            self._parts.scheduler.close()

    async def _pipeline(self) -> None:
        await pipeline(self._job)(self._parts, self._parts.version, self._job.training.steps)

    def stop(self) -> None:
        """End in order: what is being trained is finished, what is being played is left to the next session."""
        self._recorder.emit("run.stop")
        if self._parts.stop() and self._running is not None:
            self._running.cancel()
