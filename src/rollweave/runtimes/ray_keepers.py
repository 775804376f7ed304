"""Keepers: each runs one worker of the Ray runtime, and the next one when that dies.

An engine's successor is given what the dead one had been told (weights, staged weights, whether it stands still)
before anybody is connected to it. A host's leases go back to the dispatcher at once; the other hosts, or the
successor, play them. A dead trainer is not replaced here: what it had learned since its last checkpoint is gone, so
the session goes back to that checkpoint as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rollweave.clock import Clock, Waiting
from rollweave.errors import WorkerDied, first_cause
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import HostLink
from rollweave.runtimes.ray_clients import EngineState, RayEngine, RayTransport, Restarts, WorkerHandle

ANSWER_SECONDS = 1.0
"""A host that takes longer to say who waits in it is blocked."""

MOST_WAITS = 500
"""The longest, per host: `rollweave status` counts what episodes are doing, and names the longest."""


@dataclass(slots=True)
class Crew:
    """What the keepers of a run share: who works at the moment."""

    clock: Clock
    recorder: Emitter
    restarts: Restarts
    engines: list[RayEngine] = field(default_factory=list)
    """The driver's own clients."""
    hosts: dict[str, WorkerHandle] = field(default_factory=dict)

    async def ready(self, worker: WorkerHandle, *arguments: object) -> None:
        """Wait until a worker can work."""
        started = self.clock.now()
        pid = await worker.call("ready", *arguments)
        self.recorder.emit("worker.ready", worker=worker.name, pid=pid, seconds=self.clock.now() - started)

    async def waits(self) -> list[Waiting]:
        """Who waits in the hosts, longest first."""
        waits = await asyncio.gather(*(self._waits_of(host) for host in self.hosts.values()))
        return sorted((wait for some in waits for wait in some), key=lambda wait: -wait.seconds)

    async def _waits_of(self, host: WorkerHandle) -> list[Waiting]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                waits: list[Waiting] = await host.call("waits", MOST_WAITS)
                return waits
        except TimeoutError:  # somebody keeps its loop to himself
            return [Waiting(host.name, "an environment or reward that does not let go of it", ANSWER_SECONDS)]
        except WorkerDied:
            return [Waiting(host.name, "being started again", 0.0)]


class EngineKeeper:
    """Has a successor waiting that has imported everything: a process takes ten seconds to start, weights one."""

    def __init__(self, crew: Crew, number: int, spawn: Callable[[], WorkerHandle]) -> None:
        self._crew = crew
        self._number = number
        self._spawn = spawn
        self._spare: WorkerHandle | None = None

    @property
    def _engine(self) -> RayEngine:
        return self._crew.engines[self._number]

    async def start(self) -> None:
        await self._crew.ready(self._engine.worker, EngineState())

    async def run(self) -> None:
        """Keep an engine running, until cancelled."""
        worker = self._engine.worker
        death: WorkerDied | None = None
        died_at = 0.0
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(worker.call("run"))
                    if death is not None:
                        await self._introduce(worker)
                        self._crew.restarts.back(death, self._crew.clock.now() - died_at)
                    self._spare = self._spawn()
                    self._spare.tell("warm_up")
            except* WorkerDied as deaths:
                death = _death(deaths)
            assert death is not None, "an engine runs until it dies"
            died_at = self._crew.clock.now()
            worker = await self._replace(worker, death)

    async def _replace(self, dead: WorkerHandle, death: WorkerDied) -> WorkerHandle:
        while True:
            dead.end()
            self._crew.restarts.died(death)
            dead, self._spare = self._spare or self._spawn(), None
            try:
                await self._crew.ready(dead, self._engine.state)
                return dead
            except WorkerDied as again:
                death = again

    async def _introduce(self, worker: WorkerHandle) -> None:
        """Connect everybody: hosts that are there now, and, from the start, those that are spawned later."""
        for _ in range(self._engine.state.suspensions):
            await worker.call("suspend")
        self._engine.connect(worker)
        await asyncio.gather(*(self._connect(host, worker) for host in self._crew.hosts.values()))

    async def _connect(self, host: WorkerHandle, worker: WorkerHandle) -> None:
        with suppress(WorkerDied):  # its keeper knows; the next host is given this engine from the start
            await host.call("connect", self._number, worker)


class HostKeeper:
    def __init__(
        self, crew: Crew, name: str, spawn: Callable[[str], WorkerHandle], dispatcher: Dispatcher, capacity: int
    ) -> None:
        self._crew = crew
        self._name = name
        self._spawn = spawn
        self._dispatcher = dispatcher
        self._capacity = capacity
        self._lives = 0
        self._begin_life()

    async def start(self) -> None:
        await self._crew.ready(self._crew.hosts[self._name])

    def _begin_life(self) -> None:
        self._lives += 1
        self._crew.hosts[self._name] = self._spawn(self._client)

    @property
    def _client(self) -> str:
        """How engines know this life of the host, lest an answer for the dead one be given to the living."""
        return f"{self._name}.{self._lives}"

    async def run(self) -> None:
        """Keep a host playing, until cancelled."""
        while True:
            worker = self._crew.hosts[self._name]
            transport = RayTransport(worker)
            link = self._dispatcher.attach(transport, self._capacity)
            death: WorkerDied | None = None
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(worker.call("run"))
                    tasks.create_task(transport.mishaps.raised())
                    tasks.create_task(_pump(worker, link))
            except* WorkerDied as deaths:
                death = _death(deaths)
            assert death is not None, "a host plays until it dies"
            self._dispatcher.detach(link)
            await self._replace(death)

    async def _replace(self, death: WorkerDied) -> None:
        died_at = self._crew.clock.now()
        while True:
            self._crew.hosts[self._name].end()
            self._crew.restarts.died(death)
            gone = self._client
            self._begin_life()
            try:
                await asyncio.gather(self.start(), *(engine.forget(gone) for engine in self._crew.engines))
                break
            except WorkerDied as again:
                death = again
        self._crew.restarts.back(death, self._crew.clock.now() - died_at)


async def _pump(host: WorkerHandle, link: HostLink) -> None:
    while True:
        for packet in await host.call("collect"):
            link.receive(packet)


def _death(deaths: ExceptionGroup[WorkerDied]) -> WorkerDied:
    death = first_cause(deaths)
    assert isinstance(death, WorkerDied)
    return death
