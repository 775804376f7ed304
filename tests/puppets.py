"""Stand-ins for the worker processes of the Ray runtime: they answer, and die, as a test tells them."""

from __future__ import annotations

import asyncio
from typing import Any

from rollweave.engines.protocol import Completion, EngineStats, Request, Sampling
from rollweave.errors import WorkerDied
from rollweave.fleet.fleet import FleetUpdate
from rollweave.runtimes.ray_clients import Orders
from rollweave.runtimes.resources import ClusterNode
from rollweave.weights.buckets import Fingerprint
from spans import request_of, span_of


def request(id: str) -> Request:
    return request_of(id, trajectory=id.split("#")[0], tokens=[1, 2], seed=7, sampling=Sampling())


class Puppet:
    """A `WorkerHandle` whose methods are those of the class, and whose calls fail once it is dead."""

    def __init__(self, name: str, node: ClusterNode | None = None) -> None:
        self.name = name
        self.node = node
        self.calls: list[str] = []
        self.dead = asyncio.Event()
        self.stuck = asyncio.Event()
        self.stuck.set()

    async def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        doing = asyncio.ensure_future(getattr(self, method)(*arguments))
        dying = asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait([doing, dying], return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise WorkerDied(f"{self.name} died", self.name)
            return await doing
        finally:
            doing.cancel()
            dying.cancel()

    def tell(self, method: str, *arguments: Any) -> None:
        if not self.dead.is_set():
            getattr(self, f"on_{method}")(*arguments)

    def end(self) -> None:
        self.dead.set()

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()


class PuppetEngine(Puppet):
    """Keeps the engine's protocol: commits what it has staged, answers what it was asked. `stuck` holds it up."""

    def __init__(self, name: str = "engine", node: ClusterNode | None = None) -> None:
        super().__init__(name, node)
        self.version = 0
        self.staged: int | None = None
        self.suspensions = 0
        self.sampled = 0
        self.requests: list[str] = []
        self.forgotten: list[str] = []
        self.outbox: asyncio.Queue[Completion] = asyncio.Queue()

    async def ready(self) -> int:
        return 1

    async def control(self, command: str, *arguments: Any) -> Any:
        return await getattr(self, command)(*arguments)

    def on_warm_up(self) -> None:
        self.calls.append("warm_up")

    async def prepare(self, version: int) -> Fingerprint:
        await self.stuck.wait()
        self.staged = version
        return Fingerprint(version, f"sum of {version}")

    async def commit(self, version: int) -> None:
        await self.stuck.wait()
        if self.staged != version:
            raise ValueError(f"version {version} is not prepared")
        self.version, self.staged = version, None

    async def suspend(self, asleep: bool = False) -> None:
        self.suspensions += 1

    async def resume(self) -> None:
        await self.stuck.wait()
        self.suspensions -= 1

    async def stats(self) -> EngineStats:
        return EngineStats(
            sampled_tokens=self.sampled, version=self.version, checksum=f"sum of {self.version}" if self.version else ""
        )

    async def forget(self, client: str) -> None:
        self.forgotten.append(client)

    def on_serve(self, client: str, orders: Orders) -> None:
        self.requests += [request.id for request in orders.requests]

    def answer(self, id: str) -> None:
        span = span_of([3], [-0.5], [-0.5], self.version, Sampling().transform)
        self.outbox.put_nowait(Completion(id, [span], "stop"))

    async def collect(self, client: str) -> list[Completion]:
        return [await self.outbox.get()]


class PuppetHost(Puppet):
    """Notes which leases reach it and which engines it knows."""

    def __init__(self, name: str, client: str, fleet: FleetUpdate) -> None:
        super().__init__(name)
        self.client = client
        self.fleet = fleet
        self.leases: list[str] = []
        self.packets: asyncio.Queue[Any] = asyncio.Queue()

    async def ready(self) -> int:
        await self.stuck.wait()
        return 1

    @property
    def engines(self) -> list[str]:
        return [engine.id for engine in self.fleet.engines]

    async def collect(self) -> list[Any]:
        return [await self.packets.get()]

    def on_receive(self, packet: Any) -> None:
        for id, message in packet.messages.items():
            if isinstance(message, FleetUpdate):
                self.fleet = max(self.fleet, message, key=lambda update: update.revision)
            else:
                self.leases.append(id)
