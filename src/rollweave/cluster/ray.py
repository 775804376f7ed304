"""The Ray runtime: engine, trainer and environment hosts in processes of their own.

driver ──leases──▶ hosts ──requests──▶ engine          trainer ──weights──▶ shared memory ──▶ engine
       ◀─reports──       ◀─completions─
       ──batches─────────────────────────────────────▶ trainer
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from rollweave.clock import Clock
from rollweave.cluster.blueprint import Blueprint, cores
from rollweave.cluster.placement import TakingTurns
from rollweave.cluster.ray_clients import RayEngine, RayTrainer, RayTransport
from rollweave.cluster.ray_workers import EngineWorker, HostWorker, TrainerWorker
from rollweave.config.job import RayRuntime
from rollweave.pipelines.assemble import Machinery
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import Endpoint
from rollweave.training.protocol import Trainer

OBJECT_STORE_BYTES = 256 * 2**20
"""Batches and completions pass through it; weights do not."""


@asynccontextmanager
async def start_ray(blueprint: Blueprint, runtime: RayRuntime, clock: Clock, logs: Path) -> AsyncIterator[Machinery]:
    """The machinery of a job on Ray: started with the block, gone with it."""
    import ray

    _connect(runtime)
    job = blueprint.job
    engine_threads, trainer_threads = _threads(runtime)
    with _shared_folder() as store:
        engine = _actor(EngineWorker, engine_threads).remote(blueprint, store, engine_threads, logs / "engine.log")
        trainer = _actor(TrainerWorker, trainer_threads).remote(blueprint, store, trainer_threads, logs / "trainer.log")
        hosts = [
            _actor(HostWorker, 1).remote(f"host-{n}", blueprint, [engine], logs / f"host-{n}.log")
            for n in range(runtime.hosts)
        ]
        dispatcher = Dispatcher()
        capacity = -(-job.rollout.environments // runtime.hosts)
        try:
            await asyncio.gather(engine.ready.remote(), trainer.ready.remote())
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(_observe(worker), name="worker") for worker in (engine, *hosts)]
                for host in hosts:
                    link = dispatcher.attach(RayTransport(host), capacity)
                    running.append(tasks.create_task(_pump(host, link), name="transport"))
                engines = [RayEngine(engine, "driver")]
                yield Machinery(
                    engines, _placed(runtime, RayTrainer(trainer, clock, job.rollout.deadlines), engines), dispatcher
                )
                for task in running:
                    task.cancel()
        finally:
            ray.shutdown()


def _connect(runtime: RayRuntime) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "ignore_reinit_error": True}
    if runtime.address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    ray.init(address=runtime.address, **options)


def _actor(worker: type, threads: int) -> Any:
    import ray

    # OMP's idle threads spin by default, which starves whoever else has the core.
    environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    return ray.remote(worker).options(num_cpus=0, runtime_env={"env_vars": environment})


def _threads(runtime: RayRuntime) -> tuple[int, int]:
    """For engine and trainer: all cores each when they take turns, else half of them."""
    share = cores() if runtime.placement == "colocated" else max(1, cores() // 2)
    return runtime.engine_threads or share, runtime.trainer_threads or share


def _placed(runtime: RayRuntime, trainer: Trainer, engines: list[RayEngine]) -> Trainer:
    return TakingTurns(trainer, engines) if runtime.placement == "colocated" else trainer


async def _observe(worker: Any) -> None:
    """A worker's failure is ours."""
    await worker.run.remote()


async def _pump(host: Any, link: Endpoint[Any, Any]) -> None:
    while True:
        for packet in await host.collect.remote():
            link.receive(packet)


@contextmanager
def _shared_folder() -> Iterator[Path]:
    """A folder in shared memory where there is such a thing."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="rollweave-", dir=shared if shared.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
