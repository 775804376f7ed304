"""The Ray runtime: engine, trainer and environment hosts in processes of their own.

driver ──leases──▶ hosts ──requests──▶ engine          trainer ──weights──▶ shared memory ──▶ engine
       ◀─reports──       ◀─completions─
       ──batches─────────────────────────────────────▶ trainer
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rollweave.clock import Clock
from rollweave.config.job import RayRuntime
from rollweave.errors import ConfigError
from rollweave.fleet.colocated import AlternatingTrainer
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.runtimes.blueprint import Blueprint
from rollweave.runtimes.layout import EngineSeat, layout
from rollweave.runtimes.ray_clients import RayTrainer, Restarts, WorkerHandle
from rollweave.runtimes.ray_keepers import Crew, EngineKeeper, HostKeeper
from rollweave.runtimes.ray_workers import EngineWorker, HostWorker, TrainerWorker
from rollweave.training.protocol import Trainer
from rollweave.weights.shared_memory import shared_folder

OBJECT_STORE_BYTES = 256 * 2**20
"""Batches and completions pass through it; weights do not."""

SPIN_COUNT = "20000"
"""How long an idle thread of torch spins before it sleeps: about 0.2 ms, longer than the pause between two operations.
One that sleeps at once has to be woken for each of them; one that spins for long takes the core from others."""

CONNECT_SECONDS = 10.0
"""A cluster that has not answered by then is not there."""


@asynccontextmanager
async def start_ray(
    blueprint: Blueprint,
    runtime: RayRuntime,
    fleet: Fleet,
    dispatcher: Dispatcher,
    clock: Clock,
    logs: Path,
    recorder: Emitter,
) -> AsyncIterator[Trainer]:
    """The workers of a job on Ray: started with the block, gone with it."""
    with shared_folder() as store, _connected(runtime):
        crew = Crew(clock, recorder, Restarts(recorder), fleet)
        dispatcher.ask_waits = crew.waits
        places = layout(blueprint.job, runtime)
        trainer = _worker(TrainerWorker, "trainer", logs, places.trainer_threads, blueprint, store)
        names = (
            ["engine"] if len(places.engines) == 1 else [f"engine-{number}" for number in range(len(places.engines))]
        )
        keepers: list[EngineKeeper | HostKeeper] = [
            EngineKeeper(crew, partial(_engine, name, logs, seat, blueprint, store), seat)
            for name, seat in zip(names, places.engines, strict=True)
        ]
        capacity = -(-blueprint.job.rollout.slots // runtime.hosts)
        for name in [f"host-{number}" for number in range(runtime.hosts)]:
            spawn = partial(_worker, HostWorker, name, logs, 1, blueprint)
            keepers.append(HostKeeper(crew, name, spawn, dispatcher, capacity))
        await asyncio.gather(crew.ready(trainer), *(keeper.start() for keeper in keepers))
        client = RayTrainer(trainer, clock, blueprint.job.rollout.deadlines, crew.restarts)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(keeper.run()) for keeper in keepers]
            yield AlternatingTrainer(client, fleet) if places.colocated else client
            for task in running:
                task.cancel()


@contextmanager
def _connected(runtime: RayRuntime) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would announce a dead worker itself, at length, in the middle of the view (read when it is imported).
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    # What goes wrong in a call without an answer is noticed (`Mishaps`); a call to one that just died is said again.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # Workers compute; at Ray's niceness of 15 each step of theirs would wait for whatever else wants a core.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "ignore_reinit_error": True}
    if runtime.address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        _knock(runtime.address)
        ray.init(address=runtime.address, **options)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"runtime.address: no Ray cluster answers at {runtime.address!r} ({error}); start one with "
            "`ray start --head`, or set runtime.address=local for a private one"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Ask whether the address answers at all: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _engine(name: str, logs: Path, seat: EngineSeat, blueprint: Blueprint, store: Path) -> WorkerHandle:
    return _worker(EngineWorker, name, logs, seat.threads, replace(blueprint, slowdown=seat.slowdown), store)


def _worker(kind: type, name: str, logs: Path, threads: int, *arguments: Any) -> WorkerHandle:
    """Start a worker. The caller awaits its `run`, if it has one: that call raises what goes wrong in the worker."""
    import ray

    environment = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": SPIN_COUNT}
    actor = ray.remote(kind).options(num_cpus=0, runtime_env={"env_vars": environment})
    log = logs.absolute() / f"{name}.log"
    return WorkerHandle(actor.remote(*arguments, log), name, log)
