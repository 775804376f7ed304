"""The worker processes of the Ray runtime: engine, trainer, environment host.

Each is an ordinary class that Ray turns into an actor. What arrives one by one inside a process crosses the border in
batches: everything said within one tick of a loop is one actor call. Where the caller does not wait for an answer, what
goes wrong ends `run`, for which the driver waits.
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

from rollweave.clock import Clock, Waiting
from rollweave.engines.protocol import Completion, KvAsk, KvRows
from rollweave.errors import EngineGone, WorkerDied
from rollweave.fleet.fleet import EngineId, EngineInfo, FleetUpdate
from rollweave.fleet.proxy import LLMProxy
from rollweave.observability.memory import resident_mb
from rollweave.rollout.host import EnvHost
from rollweave.rollout.link import Packet
from rollweave.runtimes.blueprint import Blueprint, close_stage
from rollweave.runtimes.ray_clients import Mishaps, Orders, RayEngineClient, WorkerHandle
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.store import WeightStore

T = TypeVar("T")

Pid = int

NICENESS = 5
"""Of a host beside engine and trainer. What it does between two steps of an engine can wait for a moment; a step whose
threads lose a core to it takes twice as long."""


LINGER_SECONDS = 0.003
"""How long a host's packet for the driver waits for others: the end of an episode and a quick reward travel together,
and so do episodes that end in the same step of an engine. Each exchange takes cores from engines that compute."""


class Outbox(Generic[T]):
    """Things to be fetched by a caller that waits until there are some."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._filled = asyncio.Event()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._filled.set()

    async def take(self, linger: float = 0.0) -> list[T]:
        """`linger`: seconds that the first one waits for others."""
        await self._filled.wait()
        if linger:
            await asyncio.sleep(linger)
        self._filled.clear()
        items, self._items = self._items, []
        return items


class EngineWorker:
    def __init__(self, blueprint: Blueprint, store: WeightStore, log: Path) -> None:
        _prepare_process(log)
        self._blueprint = blueprint
        self._store = store
        self._outboxes: dict[str, Outbox[Completion]] = defaultdict(Outbox)
        self._latest: dict[str, dict[str, str]] = defaultdict(dict)
        """By client: its trajectories, each with its latest request."""
        self._mishaps = Mishaps()
        self._starting = asyncio.Lock()

    async def warm_up(self) -> None:
        """For an engine that may be needed later: get ready for `ready`, in a thread of low priority."""
        async with self._starting:
            with self._mishaps.noticed():
                await asyncio.to_thread(self._blueprint.warm_up_engine)

    async def ready(self) -> Pid:
        """Load the weights. Not done when the actor is made: what fails there cannot be told from a crash."""
        async with self._starting:
            self._engine = await self._blueprint.start_engine(
                self._store, Clock(), background=asyncio.to_thread, fetch=_fetch
            )
        return os.getpid()

    async def run(self) -> None:
        """Generate until the job ends; a failure here reaches the driver."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mishaps.raised())
            try:
                await self._engine.run()
            except EngineGone as gone:  # a worker without its engine is of no use: its keeper starts another
                logging.getLogger(__name__).error("%s", gone)
                os._exit(1)

    async def serve(self, client: str, orders: Orders) -> None:
        with self._mishaps.noticed():
            for trajectory in orders.released:
                self._latest[client].pop(trajectory, None)
                self._engine.release(trajectory)
            for request in orders.requests:
                self._latest[client][request.trajectory] = request.id
                self._engine.add(request, self._outboxes[client].put)
            for request_id in orders.aborted:
                self._engine.abort(request_id)

    async def collect(self, client: str) -> list[Completion]:
        """What has been completed for a client since it last asked; waits for something."""
        return await self._outboxes[client].take()

    async def forget(self, client: str) -> None:
        """The client is gone: end its requests, free its caches."""
        for trajectory, request_id in self._latest.pop(client, {}).items():
            self._engine.abort(request_id)
            self._engine.release(trajectory)
        self._outboxes.pop(client, None)

    async def control(self, command: str, *arguments: Any) -> Any:
        """A command of `EngineControl`."""
        return await getattr(self._engine, command)(*arguments)


class TrainerWorker:
    def __init__(self, blueprint: Blueprint, store: WeightStore, log: Path) -> None:
        _prepare_process(log)
        self._blueprint = blueprint
        self._store = store

    def ready(self) -> Pid:
        self._core = self._blueprint.trainer()
        return os.getpid()

    def train_step(self, batch: Batch) -> Metrics:
        return self._core.train_step(batch) | {"memory/trainer_mb": resident_mb()}

    def publish(self, version: int) -> Fingerprint:
        return self._core.publish(version, self._store)

    def save(self, folder: Path, driver: DriverFiles) -> None:
        self._core.save(folder, driver)

    def load(self, folder: Path) -> None:
        self._core.load(folder)


class HostWorker:
    def __init__(self, blueprint: Blueprint, client: str, fleet: FleetUpdate, log: Path) -> None:
        """`client`: how engines know this life of the host."""
        _prepare_process(log)
        os.nice(NICENESS)
        self._client = client
        self._blueprint = blueprint
        self._fleet = fleet
        self._tasks: asyncio.TaskGroup | None = None
        self._early: list[RayEngineClient] = []
        self._clients: dict[EngineId, RayEngineClient] = {}
        self._clock = Clock()
        self._outbox: Outbox[Packet[Any]] = Outbox()
        self._mishaps = Mishaps()

    async def ready(self) -> Pid:
        proxy = LLMProxy(self._clock, self._fleet, self._connect)
        proxy.on_gone = self._give_up
        self._stage = self._blueprint.stage(proxy, self._clock)
        self._host = EnvHost(self._stage, self._outbox.put)
        return os.getpid()

    async def run(self) -> None:
        """Play what is leased until the job ends; a failure here reaches the driver."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._mishaps.raised())
                for engine in self._early:
                    tasks.create_task(engine.run())
                await self._host.run()
        finally:
            await close_stage(self._stage)

    async def receive(self, packet: Packet[Any]) -> None:
        with self._mishaps.noticed():
            self._host.link.receive(packet)

    async def collect(self) -> list[Packet[Any]]:
        """Packets for the driver; waits for some."""
        return await self._outbox.take(LINGER_SECONDS)

    def _connect(self, engine: EngineInfo) -> RayEngineClient:
        client = self._clients[engine.id] = RayEngineClient(engine.address, self._client)
        client.on_refused = lambda answers: self._host.tell_refused(engine.id, answers)
        if self._tasks is None:
            self._early.append(client)
        else:
            self._tasks.create_task(client.run())
        return client

    def _give_up(self, engine: EngineId) -> None:
        self._clients.pop(engine).give_up("the driver has given it up")

    async def waits(self, most: int) -> list[Waiting]:
        """Who waits here, longest first."""
        return self._clock.waiting(most)


async def _fetch(engine: WorkerHandle, ask: KvAsk) -> KvRows | None:
    """From engine to engine: the keys and values travel through the object store, not through a host."""
    try:
        rows: KvRows | None = await engine.call("control", "kv_rows", ask)
    except WorkerDied as death:
        raise EngineGone(str(death)) from death
    return rows


def _prepare_process(log: Path) -> None:
    """Everything said in the process, by a crash or a user's `print` too, goes to its log in the run folder."""
    with log.open("a") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    faulthandler.enable()
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
