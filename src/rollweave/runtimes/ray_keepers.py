"""Keepers: each runs one worker of the Ray runtime, and the next one when that dies.

An engine that dies is lost to the fleet at once; its successor joins as a new engine, which catches up with the weights
of the others (`WeightSync.catch_up`) before it is asked. Nothing waits for it meanwhile. A host's leases go back to the
dispatcher at once; the other hosts, or the successor, play them. A dead trainer is not replaced here: what it had
learned since its last checkpoint is gone, so the session goes back to that checkpoint as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from rollweave.clock import Clock, Waiting
from rollweave.errors import WorkerDied, first_cause
from rollweave.fleet.fleet import EngineEntry, EngineId, Fleet, FleetUpdate
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import HostLink
from rollweave.runtimes.layout import EngineSeat
from rollweave.runtimes.ray_clients import RayEngineControl, RayTransport, Restarts, WorkerHandle

ANSWER_SECONDS = 1.0
"""A host that takes longer to say who waits in it is blocked."""

MOST_WAITS = 500
"""The longest, per host: `rollweave status` counts what episodes are doing, and names the longest."""


@dataclass(slots=True)
class Crew:
    """What the keepers of a run share."""

    clock: Clock
    recorder: Emitter
    restarts: Restarts
    fleet: Fleet
    hosts: dict[str, WorkerHandle] = field(default_factory=dict)

    async def ready(self, worker: WorkerHandle) -> None:
        """Wait until a worker can work."""
        started = self.clock.now()
        with self.clock.wait("driver", f"{worker.name} to start"):
            pid = await worker.call("ready")
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
        except TimeoutError:  # an environment or a reward blocks its loop
            return [Waiting(host.name, "an environment or reward that does not let go of it", ANSWER_SECONDS)]
        except WorkerDied:
            return [Waiting(host.name, "being started again", 0.0)]


@dataclass(slots=True)
class EngineKeeper:
    """Has a successor waiting that has imported everything: a process takes ten seconds to start, weights one."""

    crew: Crew
    spawn: Callable[[], WorkerHandle]
    seat: EngineSeat = field(default_factory=lambda: EngineSeat(threads=1))
    _worker: WorkerHandle = field(init=False)
    _id: EngineId = field(init=False)
    _spare: WorkerHandle | None = None
    _lives: int = 0

    def __post_init__(self) -> None:
        self.crew.fleet.on_change.append(self._end_if_lost)
        self._join(self.spawn())

    async def start(self) -> None:
        await self.crew.ready(self._worker)

    async def run(self) -> None:
        """Keep an engine running, until cancelled."""
        while True:
            self._spare = self.spawn()
            self._spare.tell("warm_up")
            try:
                await self._worker.call("run")  # it ends only when the engine dies
            except WorkerDied as death:
                died_at = self.crew.clock.now()
                self.crew.fleet.lose(self._id, str(death))
                self._join(await self._successor(death))
                self.crew.restarts.back(death, self.crew.clock.now() - died_at)

    async def _successor(self, death: WorkerDied) -> WorkerHandle:
        dead = self._worker
        while True:
            dead.end()
            self.crew.restarts.died(death)
            dead, self._spare = self._spare or self.spawn(), None
            try:
                await self.crew.ready(dead)
                return dead
            except WorkerDied as again:
                death = again

    def _join(self, worker: WorkerHandle) -> None:
        """A life joins the fleet. After the first one it is asked nothing before it has the weights of the others."""
        self._worker = worker
        self._lives += 1
        self._id = f"{worker.name}/{self._lives}"
        control, seat = RayEngineControl(worker), self.seat
        self.crew.fleet.join(EngineEntry(self._id, control, worker, seat.pool, seat.device, seat.tasks))

    def _end_if_lost(self, entry: EngineEntry) -> None:
        """The fleet gives up an engine that was out of reach or took too long. Its process may still run, and would
        keep its successor away."""
        if entry.id == self._id and entry.state == "gone":
            self._worker.end()


@dataclass(slots=True)
class HostKeeper:
    crew: Crew
    name: str
    spawn: Callable[[str, FleetUpdate], WorkerHandle]
    dispatcher: Dispatcher
    capacity: int
    _lives: int = 0
    _revision: int = field(init=False)
    """Of the fleet that the present life knew when it was started."""

    def __post_init__(self) -> None:
        self._begin_life()

    async def start(self) -> None:
        await self.crew.ready(self.crew.hosts[self.name])

    def _begin_life(self) -> None:
        self._lives += 1
        fleet = self.crew.fleet.update()
        self._revision = fleet.revision
        self.crew.hosts[self.name] = self.spawn(self._client, fleet)

    @property
    def _client(self) -> str:
        """How engines know this life of the host, lest an answer for the dead one be given to the living."""
        return f"{self.name}.{self._lives}"

    async def run(self) -> None:
        """Keep a host playing, until cancelled."""
        while True:
            worker = self.crew.hosts[self.name]
            transport = RayTransport(worker)
            link = self.dispatcher.attach(transport, self.capacity, self._revision)
            death: WorkerDied | None = None
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(worker.call("run"))
                    tasks.create_task(transport.mishaps.raised())
                    tasks.create_task(_pump(worker, link))
            except* WorkerDied as deaths:
                death = cast(WorkerDied, first_cause(deaths))
            finally:
                link.close()  # a call after the end of the run would make Ray start a cluster of its own
            assert death is not None, "a host plays until it dies"
            self.dispatcher.detach(link)
            await self._replace(death)

    async def _replace(self, death: WorkerDied) -> None:
        died_at = self.crew.clock.now()
        while True:
            self.crew.hosts[self.name].end()
            self.crew.restarts.died(death)
            gone = self._client
            self._begin_life()
            try:
                await asyncio.gather(self.start(), *(_forget(entry, gone) for entry in self.crew.fleet.living()))
                break
            except WorkerDied as again:
                death = again
        self.crew.restarts.back(death, self.crew.clock.now() - died_at)


async def _forget(engine: EngineEntry, client: str) -> None:
    """A client is gone: what it asked of this engine is not wanted any more."""
    worker = cast(WorkerHandle, engine.address)
    with suppress(WorkerDied):  # and with it all that it was asked
        await worker.call("forget", client)


async def _pump(host: WorkerHandle, link: HostLink) -> None:
    while True:
        for packet in await host.call("collect"):
            link.receive(packet)
