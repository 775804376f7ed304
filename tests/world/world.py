"""A whole modelled world for a job: the production control plane around modelled machinery.

rows = run_virtual(lambda clock: simulate(job, World(), clock))
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from tests.world.durations import NO_TIME, Duration, constant
from tests.world.engine import SimulatedEngine, SyncModel
from tests.world.environment import (
    ByteDialogue,
    EnvironmentModel,
    RewardModel,
    SimulatedEnvironment,
    SimulatedReward,
)
from tests.world.faults import Outage, Seat, suffer
from tests.world.hosts import SimulatedHost, TransportModel
from tests.world.trainer import SimulatedTrainer
from tests.world.witness import Witness

from rollweave.clock import Clock
from rollweave.config.control import ControlConfig
from rollweave.config.job import Job
from rollweave.fleet.fleet import EngineEntry, EngineRole, Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.observability.events import MemoryRecorder
from rollweave.pipelines.assemble import assemble
from rollweave.pipelines.checkpoints import DriverState, Kept
from rollweave.pipelines.journal import MetricsRow
from rollweave.pipelines.loop import Loop
from rollweave.pipelines.permits import MakePermits
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.manager import Stage, TurnBarrier
from rollweave.seeds import derive
from rollweave.simulation.faults import see_every_failure
from rollweave.tasks import SeedSource, Task
from rollweave.training.checkpoint import DriverFiles, step_of

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
    prefill: int = 0
    """Engines beside them that compute contexts; the others then only decode."""
    permits: MakePermits | None = None
    """How the job comes by pools that it shares with others."""


@dataclass(slots=True)
class SimulatedRun:
    """What is left of a run on the virtual clock, for tests that look at it."""

    loop: Loop
    trainer: SimulatedTrainer
    engines: list[SimulatedEngine]
    recorder: MemoryRecorder
    witness: Witness
    rows: list[MetricsRow] = field(default_factory=list)
    seconds: float = 0.0

    async def rewind(self) -> Kept:
        """To the trainer's newest checkpoint; rows that are written again are cut away, as a session does it."""
        newest = max(self.trainer.saved, key=lambda name: step_of(Path(name)), default=None)
        kept = Kept()
        if newest is not None:
            kept = Kept(CHECKPOINTS / newest, DriverState.load(self.trainer.saved[newest]).scheduler)
        self.rows[:] = [row for row in self.rows if int(row["step"] or 0) < kept.scheduler.version]
        return kept


async def simulate(job: Job, world: World, clock: Clock, resume: DriverFiles | None = None) -> SimulatedRun:
    """Run the job's pipeline, unchanged, against modelled machinery.

    `resume`: what a checkpoint of another such run kept (`trainer.saved`); this one goes on from there.
    """
    control = job.control
    fleet, witness = Fleet(), Witness()
    dispatcher = Dispatcher.of(control.rollout, fleet)
    fleet.on_change.append(witness.see)
    seats, engines = _engines(control, world, clock, fleet, witness)
    trainer = SimulatedTrainer(clock, world.train_seconds, control.seed, world.sync.publish, world.save_seconds)
    recorder, rows = MemoryRecorder(clock.now), list[MetricsRow]()
    drive = assemble(
        control,
        fleet,
        dispatcher,
        trainer,
        SeedSource("simulated", control.seed),
        (),
        CHECKPOINTS,
        clock,
        recorder,
        permits=world.permits(clock) if world.permits is not None else None,
        on_row=[lambda step, row: rows.append({"step": step, **row})],
    )
    run = SimulatedRun(drive.loop, trainer, engines, recorder, witness, rows)
    drive.loop.checkpoints.rewind = run.rewind
    hosts = _hosts(control, world, clock, fleet, dispatcher)
    async with asyncio.TaskGroup() as tasks:
        see_every_failure(tasks)
        for host in hosts:
            host.begin(tasks)
        trouble = tasks.create_task(suffer(world.outages, seats, hosts, trainer, clock, tasks), name="outages")
        if resume is not None:
            kept = DriverState.load(resume).scheduler
            await drive.loop.checkpoints.restore(CHECKPOINTS / f"step-{kept.version}", kept)
        await drive.advance()
        run.seconds = clock.now()
        trouble.cancel()
        for host in hosts:
            host.kill()
    return run


def _engines(
    control: ControlConfig, world: World, clock: Clock, fleet: Fleet, witness: Witness
) -> tuple[list[Seat], list[SimulatedEngine]]:
    """The seats, and the engines that sit there: a list that grows when one dies and another takes its seat."""
    engines: list[SimulatedEngine] = []

    def make() -> SimulatedEngine:
        engine = SimulatedEngine(
            clock,
            world.token_seconds,
            world.answer_tokens,
            in_flight=control.pipeline.in_flight,
            sync=world.sync,
            number=len(engines),
            witness=witness,
        )
        engines.append(engine)
        return engine

    answers: EngineRole = "decode" if world.prefill else "rollout"
    seats = [Seat(fleet, "engine", n, make, partial(EngineEntry, role=answers)) for n in range(world.engines)]
    seats += [Seat(fleet, "prefill", n, make, partial(EngineEntry, role="prefill")) for n in range(world.prefill)]
    for seat in seats:
        seat.begin()
    return seats, engines


def _hosts(
    control: ControlConfig, world: World, clock: Clock, fleet: Fleet, dispatcher: Dispatcher
) -> list[SimulatedHost]:
    instances = itertools.count()

    def environment(task: Task) -> SimulatedEnvironment:
        return SimulatedEnvironment(world.environment, clock, derive(control.seed, "instance", next(instances)))

    def stage() -> Stage:
        scorer = SimulatedReward(world.reward, clock, control.seed)
        proxy, barrier = LLMProxy(clock, fleet.update()), TurnBarrier() if control.has_barrier else None
        return Stage(clock, proxy, environment, ByteDialogue(), scorer, control.rollout, barrier)

    capacity = -(-control.rollout.slots // world.hosts)
    return [
        SimulatedHost(dispatcher, stage, capacity, world.transport, derive(control.seed, "host", n))
        for n in range(world.hosts)
    ]
