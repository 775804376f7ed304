"""The inline runtime: everything cooperatively on one loop, in one process.

Deterministic and friendly to a debugger; generation and training cannot overlap, because a train step blocks
the loop. That time counts against no deadline. Several engines step in a thread each, so that they can use
several cores; then the order of answers is the threads', and only what is sampled stays the seed's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rollweave.clock import Clock
from rollweave.config.job import InlineRuntime, Job, RayRuntime
from rollweave.engines.loop import StepSeconds
from rollweave.errors import EngineGone
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.manager import Dialogue
from rollweave.runtimes.blueprint import Blueprint, close_stage, cores
from rollweave.runtimes.layout import EngineSeat, engine_seats
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Group
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.store import MemoryStore, WeightStore

if TYPE_CHECKING:
    from rollweave.training.trainer import TorchTrainer


@dataclass(slots=True)
class InlineTrainer:
    """The torch trainer on the control plane's own loop."""

    make: Callable[[], TorchTrainer]
    store: WeightStore
    clock: Clock
    step_seconds: float = 0.0
    core: TorchTrainer = field(init=False)

    def __post_init__(self) -> None:
        self.core = self.make()

    async def begin(self, step: int, stream: bool = False) -> None:
        with self.clock.blocked():
            self.core.begin(step, stream)

    async def accumulate(self, groups: Sequence[Group]) -> None:
        with self.clock.blocked():
            self.core.accumulate(groups)

    async def finish(self) -> Metrics:
        with self.clock.blocked():
            metrics = self.core.finish()
        await self.clock.sleep(self.step_seconds)
        return metrics

    async def publish(self, version: int) -> Fingerprint:
        with self.clock.blocked():
            return self.core.publish(version, self.store)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        """In a thread, so that episodes go on meanwhile. The virtual clock knows no threads: there the loop waits."""
        if self.clock.is_virtual:
            self.core.save(folder, driver)
        else:
            await asyncio.to_thread(self.core.save, folder, driver)

    async def load(self, folder: Path) -> None:
        self.core.load(folder)

    async def restart(self) -> None:
        with self.clock.blocked():
            self.core = self.make()


@asynccontextmanager
async def start_engines_and_host(
    blueprint: Blueprint,
    fleet: Fleet,
    dispatcher: Dispatcher,
    clock: Clock,
    store: WeightStore,
    step_seconds: StepSeconds | None = None,
) -> AsyncIterator[None]:
    """Engines and an environment host in this process: all that playing needs."""
    with ExitStack() as threads:
        seats = _seats(blueprint.job)
        engines = [
            await replace(blueprint, slowdown=seat.slowdown).start_engine(store, clock, step_seconds, thread=thread)
            for seat, thread in zip(seats, _threads(blueprint.job.runtime, len(seats), threads), strict=True)
        ]
        for number, (seat, engine) in enumerate(zip(seats, engines, strict=True)):
            pool = seat.pool or "engine"
            entry = EngineEntry(f"{pool}-{number}/1", engine, None, pool, seat.device, seat.tasks, seat.role)
            fleet.join(entry)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(engine.run(), name=f"engine {n}") for n, engine in enumerate(engines)]
            running.append(tasks.create_task(_until_all_are_lost(fleet), name="fleet"))
            try:
                async with start_host(blueprint, fleet, dispatcher, clock):
                    yield
            finally:
                for task in running:
                    task.cancel()


async def _until_all_are_lost(fleet: Fleet) -> NoReturn:
    """An engine in this process that was given up has no successor: without any, the run ends with the cause."""
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(entry: EngineEntry) -> None:
        if entry.state == "gone" and not fleet.living() and not lost.done():
            lost.set_result(entry.cause)

    fleet.on_change.append(hear)
    raise EngineGone(await lost)


@asynccontextmanager
async def start_host(
    blueprint: Blueprint, fleet: Fleet, dispatcher: Dispatcher, clock: Clock, dialogue: Dialogue | None = None
) -> AsyncIterator[None]:
    """An environment host in this process, for the engines of the fleet. `dialogue`: if not the policy's own."""
    stage = blueprint.stage(LLMProxy(clock, fleet.update()), clock, dialogue)
    host: EnvHost
    link = dispatcher.attach(lambda packet: host.link.receive(packet), blueprint.job.rollout.slots)
    host = EnvHost(stage, link.receive)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(host.run(), name="host")
        try:
            yield
        finally:
            running.cancel()
            await close_stage(stage)


def _seats(job: Job) -> tuple[EngineSeat, ...]:
    """As many engines as the pools of the cluster file have; without one, as many as the runtime says."""
    if isinstance(job.runtime, InlineRuntime) and job.cluster is not None:
        return engine_seats(job.cluster)
    return (EngineSeat(threads=0),) * (job.runtime.engines if isinstance(job.runtime, InlineRuntime) else 1)


def _threads(runtime: InlineRuntime | RayRuntime, engines: int, threads: ExitStack) -> list[Executor | None]:
    """What each engine steps in: a single one in the loop itself, where everything has its order."""
    if not isinstance(runtime, InlineRuntime) or engines == 1:
        return [None]
    make = partial(ThreadPoolExecutor, 1, "engine", use_threads, (runtime, engines))
    return [threads.enter_context(make()) for _ in range(engines)]


@asynccontextmanager
async def start_inline(
    blueprint: Blueprint,
    fleet: Fleet,
    dispatcher: Dispatcher,
    clock: Clock,
    engine_step_seconds: StepSeconds | None = None,
    train_step_seconds: float = 0.0,
) -> AsyncIterator[Trainer]:
    """The workers of a job in this process. Modelled step times drive the real parts by the virtual clock."""
    store = MemoryStore(blueprint.job.weights.bucket_mb)
    trainer = InlineTrainer(blueprint.trainer, store, clock, train_step_seconds)
    async with start_engines_and_host(blueprint, fleet, dispatcher, clock, store, engine_step_seconds):
        yield trainer


def use_threads(runtime: InlineRuntime, sharing: int = 1) -> None:
    """Let the calling thread compute on as many cores as the job says; `sharing`: so many compute at the same time."""
    import torch

    torch.set_num_threads(runtime.threads or max(1, cores() // sharing))
