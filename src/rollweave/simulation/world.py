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

from rollweave.clock import Clock
from rollweave.config.job import Job
from rollweave.observability.events import MemoryRecorder
from rollweave.pipelines.assemble import PIPELINES, Listeners, Machinery, assemble
from rollweave.pipelines.journal import Row
from rollweave.pipelines.parts import Parts
from rollweave.rollout.barrier import TurnBarrier
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.manager import Stage
from rollweave.rollout.proxy import LLMProxy
from rollweave.seeds import derive
from rollweave.simulation.durations import Duration, constant
from rollweave.simulation.engine import SimulatedEngine
from rollweave.simulation.environment import ByteDialogue, EnvironmentModel, SimulatedEnvironment, StepRewards
from rollweave.simulation.trainer import SimulatedTrainer
from rollweave.simulation.transport import SimulatedTransport, TransportModel
from rollweave.tasks import SeedSource


@dataclass(frozen=True, slots=True)
class World:
    """The machinery's models."""

    token_seconds: Duration = constant(0.01)  # noqa: RUF009 (durations are pure)
    answer_tokens: Callable[[Random], int] = lambda rng: rng.randint(1, 6)
    train_seconds: Duration = constant(1.0)  # noqa: RUF009
    environment: EnvironmentModel = EnvironmentModel(turns=lambda rng: rng.randint(1, 5))  # noqa: RUF009
    transport: TransportModel = TransportModel()  # noqa: RUF009
    hosts: int = 1
    engines: int = 1


@dataclass(slots=True)
class SimulatedRun:
    """What is left of a run on the virtual clock, for whoever asks."""

    parts: Parts
    trainer: SimulatedTrainer
    recorder: MemoryRecorder
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0


async def simulate(job: Job, world: World, clock: Clock) -> SimulatedRun:
    """Run the job's pipeline, unchanged, against modelled machinery."""
    recorder = MemoryRecorder(clock.now)
    rows: list[Row] = []
    engines = [SimulatedEngine(clock, world.token_seconds, world.answer_tokens) for _ in range(world.engines)]
    trainer = SimulatedTrainer(clock, world.train_seconds, job.seed)
    dispatcher = Dispatcher()
    instances = itertools.count()

    def stage() -> Stage:
        return Stage(
            clock=clock,
            proxy=LLMProxy(engines),
            environment=lambda task: SimulatedEnvironment(
                world.environment, clock, derive(job.seed, "instance", next(instances))
            ),
            dialogue=ByteDialogue(),
            scorer=StepRewards(),
            deadlines=job.rollout.deadlines,
            max_turns=job.rollout.max_turns,
            max_context=job.rollout.max_context,
            barrier=TurnBarrier() if job.pipeline.type == "sync" else None,
        )

    parts = assemble(
        job,
        Machinery(engines, trainer, dispatcher),
        SeedSource("simulated", job.seed),
        (),
        Path("unused"),
        clock,
        Listeners(recorder, on_row=[lambda step, row: rows.append({"step": step, **row})]),
    )
    run = SimulatedRun(parts, trainer, recorder, rows)
    capacity = -(-job.rollout.environments // world.hosts)
    async with asyncio.TaskGroup() as tasks:
        hosts = [
            tasks.create_task(
                _attach(dispatcher, stage(), capacity, world.transport, derive(job.seed, "host", n)).run()
            )
            for n in range(world.hosts)
        ]
        await PIPELINES[job.pipeline.type](parts, 0, job.training.steps)
        run.seconds = clock.now()
        for host in hosts:
            host.cancel()
    return run


def _attach(dispatcher: Dispatcher, stage: Stage, capacity: int, model: TransportModel, seed: int) -> EnvHost:
    """A host behind a transport that behaves as modelled in both directions."""
    host: EnvHost
    to_host = SimulatedTransport(model, lambda packet: host.link.receive(packet), derive(seed, "to host"))
    link = dispatcher.attach(to_host, capacity)
    host = EnvHost(stage, SimulatedTransport(model, link.receive, derive(seed, "to driver")))
    return host
