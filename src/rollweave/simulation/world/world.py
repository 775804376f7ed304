"""A whole modelled world for a job: the production control plane around modelled machinery.

rows = run_virtual(lambda clock: simulate(job, World(), clock))
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rollweave.clock import Clock
from rollweave.config.job import Job
from rollweave.fleet.proxy import LLMProxy, MovingProxy
from rollweave.observability.events import MemoryRecorder
from rollweave.pipelines.assemble import Listeners, Machinery, assemble, pipeline
from rollweave.pipelines.journal import MetricsRow
from rollweave.pipelines.loop import Parts
from rollweave.pipelines.permits import MakePermits, alone
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.manager import Stage, TurnBarrier
from rollweave.runs.resume import DriverState
from rollweave.seeds import derive
from rollweave.simulation.durations import NO_TIME, Duration, constant
from rollweave.simulation.faults import Outage, suffer
from rollweave.simulation.world.engine import SimulatedEngine, SyncModel
from rollweave.simulation.world.environment import (
    ByteDialogue,
    EnvironmentModel,
    RewardModel,
    SimulatedEnvironment,
    SimulatedReward,
)
from rollweave.simulation.world.hosts import SimulatedHost, TransportModel
from rollweave.simulation.world.trainer import SimulatedTrainer
from rollweave.simulation.world.witness import Witness
from rollweave.tasks import SeedSource
from rollweave.training.checkpoint import DriverFiles

CHECKPOINTS = Path("modelled")
"""Nothing is written there: the modelled trainer keeps its checkpoints to itself."""


@dataclass(frozen=True, slots=True)
class World:
    """The machinery's models, and what befalls it."""

    token_seconds: Duration = constant(0.01)  # noqa: RUF009 (durations are pure)
    answer_tokens: Callable[[Random], int] = lambda rng: rng.randint(1, 6)
    train_seconds: Duration = constant(1.0)  # noqa: RUF009
    save_seconds: Duration = NO_TIME
    environment: EnvironmentModel = EnvironmentModel(turns=lambda rng: rng.randint(1, 5))  # noqa: RUF009
    reward: RewardModel = RewardModel()  # noqa: RUF009
    sync: SyncModel = SyncModel()  # noqa: RUF009
    transport: TransportModel = TransportModel()  # noqa: RUF009
    outages: tuple[Outage, ...] = ()
    hosts: int = 1
    engines: int = 1
    turns: MakePermits = alone
    """How the job comes by its pools. Where they are shared, all hosts reach the engines through one proxy."""


@dataclass(slots=True)
class SimulatedRun:
    """What is left of a run on the virtual clock, for whoever asks."""

    parts: Parts
    trainer: SimulatedTrainer
    engines: list[SimulatedEngine]
    recorder: MemoryRecorder
    witness: Witness
    rows: list[MetricsRow] = field(default_factory=list)
    seconds: float = 0.0


async def simulate(job: Job, world: World, clock: Clock, resume: DriverFiles | None = None) -> SimulatedRun:
    """Run the job's pipeline, unchanged, against modelled machinery.

    `resume`: what a checkpoint of another such run kept (`trainer.saved`); this one goes on from there.
    """
    dispatcher = Dispatcher(job.rollout.scheduling)
    run = _assemble(job, world, clock, dispatcher)
    instances = itertools.count()
    moving = run.parts.tail.proxy if run.parts.tail is not None else None

    def stage() -> Stage:
        return Stage(
            clock=clock,
            proxy=moving or LLMProxy(run.engines),
            environment=lambda task: SimulatedEnvironment(
                world.environment, clock, derive(job.seed, "instance", next(instances))
            ),
            dialogue=ByteDialogue(),
            scorer=SimulatedReward(world.reward, clock, job.seed),
            deadlines=job.rollout.deadlines,
            max_turns=job.rollout.max_turns,
            max_context=job.rollout.max_context,
            barrier=TurnBarrier() if job.pipeline.type == "sync" else None,
            prompt_replication=job.rollout.prompt_replication,
        )

    capacity = -(-job.rollout.slots // world.hosts)
    hosts = [
        SimulatedHost(dispatcher, stage, capacity, world.transport, derive(job.seed, "host", n))
        for n in range(world.hosts)
    ]
    async with asyncio.TaskGroup() as tasks:
        _see_every_failure(tasks)
        for host in hosts:
            host.begin(tasks)
        trouble = tasks.create_task(suffer(world.outages, run.engines, hosts, clock, tasks), name="outages")
        if resume is not None:
            await run.parts.restore(CHECKPOINTS, DriverState.load(resume).scheduler)
        await pipeline(job)(run.parts, run.parts.version, job.training.steps)
        run.seconds = clock.now()
        trouble.cancel()
        for host in hosts:
            host.kill()
    return run


def _see_every_failure(tasks: asyncio.TaskGroup) -> None:
    """What goes wrong in a callback of the loop ends the run, where asyncio would only log it."""

    async def fail(context: dict[str, Any]) -> None:
        raise context.get("exception") or RuntimeError(context["message"])

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        tasks.create_task(fail(context), name="failure in a callback")

    asyncio.get_running_loop().set_exception_handler(handle)


def _assemble(job: Job, world: World, clock: Clock, dispatcher: Dispatcher) -> SimulatedRun:
    """The control plane around modelled engines and a modelled trainer."""
    recorder, witness = MemoryRecorder(clock.now), Witness()
    rows: list[MetricsRow] = []
    engines = [
        SimulatedEngine(
            clock,
            world.token_seconds,
            world.answer_tokens,
            in_flight=job.in_flight,
            sync=world.sync,
            number=number,
            witness=witness,
        )
        for number in range(world.engines)
    ]
    trainer = SimulatedTrainer(clock, world.train_seconds, job.seed, world.sync.publish, world.save_seconds)
    parts = assemble(
        job,
        Machinery(engines, trainer, dispatcher, turns=world.turns(clock), proxy=MovingProxy(engines)),
        SeedSource("simulated", job.seed),
        (),
        CHECKPOINTS,
        clock,
        Listeners(recorder, on_row=[lambda step, row: rows.append({"step": step, **row})]),
    )
    parts.driver_state = lambda: DriverState(parts.scheduler.state(parts.version)).dump()
    return SimulatedRun(parts, trainer, engines, recorder, witness, rows)
