"""The worker processes of the Ray runtime: engine, trainer, environment host.

Each is an ordinary class that Ray turns into an actor. What arrives one by one inside a process crosses the
border in batches: everything said within one tick of a loop is one actor call.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from rollweave.clock import Clock
from rollweave.cluster.blueprint import Blueprint
from rollweave.cluster.ray_handle import WorkerHandle
from rollweave.engines.loop import EngineLoop
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.latency import LateEnvironments
from rollweave.observability.memory import resident_mb
from rollweave.rollout.host import EnvHost
from rollweave.rollout.link import Packet
from rollweave.rollout.messages import Lease
from rollweave.rollout.proxy import LLMProxy
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch
from rollweave.weights.store import SharedMemoryStore

T = TypeVar("T")


class Outbox(Generic[T]):
    """Things to be fetched by a caller that waits until there are some."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._filled = asyncio.Event()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._filled.set()

    async def take(self) -> list[T]:
        await self._filled.wait()
        self._filled.clear()
        items, self._items = self._items, []
        return items


class EngineWorker:
    def __init__(self, blueprint: Blueprint, store: Path, log: Path) -> None:
        _prepare_process(log)
        self._blueprint = blueprint
        self._store = SharedMemoryStore(store)
        self._outboxes: dict[str, Outbox[Completion]] = defaultdict(Outbox)

    async def run(self) -> None:
        """Generate until the job ends; a failure here reaches the driver."""
        await self._loop.run()

    async def ready(self) -> None:
        """Load the weights. Not done when the actor is made: what fails there cannot be told from a crash."""
        self._loop = EngineLoop(self._blueprint.engine(), self._store, Clock())

    async def add(self, client: str, requests: list[Request]) -> None:
        for request in requests:
            self._loop.add(request, self._outboxes[client].put)

    async def collect(self, client: str) -> list[Completion]:
        """What has been completed for a client since it last asked; waits for something."""
        return await self._outboxes[client].take()

    async def abort(self, request_id: str) -> None:
        self._loop.abort(request_id)

    async def release(self, trajectories: list[str]) -> None:
        for trajectory in trajectories:
            self._loop.release(trajectory)

    async def suspend(self) -> None:
        await self._loop.suspend()

    async def resume(self) -> None:
        await self._loop.resume()

    async def prepare(self, version: int) -> str:
        return await self._loop.prepare(version)

    async def commit(self, version: int) -> None:
        await self._loop.commit(version)

    async def stats(self) -> EngineStats:
        return await self._loop.stats()


class TrainerWorker:
    def __init__(self, blueprint: Blueprint, store: Path, log: Path) -> None:
        _prepare_process(log)
        self._blueprint = blueprint
        self._store = SharedMemoryStore(store)

    def ready(self) -> None:
        self._core = self._blueprint.trainer()

    def train_step(self, batch: Batch) -> Metrics:
        return self._core.train_step(batch) | {"memory/trainer_mb": resident_mb()}

    def publish(self, version: int) -> str:
        return self._store.push(version, self._core.weights())

    def save(self, folder: Path, driver: str) -> None:
        self._core.save(folder, driver)

    def load(self, folder: Path) -> None:
        self._core.load(folder)


class HostWorker:
    def __init__(self, name: str, blueprint: Blueprint, engines: list[WorkerHandle], log: Path) -> None:
        _prepare_process(log)
        self._name = name
        self._blueprint = blueprint
        self._engines = engines
        self._outbox: Outbox[Packet[Any]] = Outbox()

    async def run(self) -> None:
        """Play what is leased until the job ends; a failure here reaches the driver."""
        from rollweave.cluster.ray_clients import RayEngine

        clients = [RayEngine(engine, self._name) for engine in self._engines]
        stage = self._blueprint.stage(LLMProxy(clients), Clock())
        self._host = EnvHost(stage, self._outbox.put)
        try:
            async with asyncio.TaskGroup() as tasks:
                for client in clients:
                    tasks.create_task(client.run())
                await self._host.run()
        finally:
            if isinstance(stage.environment, EnvironmentPool | LateEnvironments):
                await stage.environment.close()

    async def receive(self, packet: Packet[Lease]) -> None:
        self._host.link.receive(packet)

    async def collect(self) -> list[Packet[Any]]:
        """Packets for the driver; waits for some."""
        return await self._outbox.take()


def _prepare_process(log: Path) -> None:
    """Everything said in the process, by a crash or a user's `print` too, goes to its log in the run folder."""
    with log.open("a") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    faulthandler.enable()
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
