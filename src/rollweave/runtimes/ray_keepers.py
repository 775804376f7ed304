"""Keepers: each runs one worker of the Ray runtime, and the next one when that dies.

An engine that dies is lost to the fleet at once; its successor joins as a new engine, which catches up with the weights
of the others (`WeightSync.catch_up`) before it is asked. Nothing waits for it meanwhile. If its node is out of reach,
it starts in a compatible pool, and moves back when its own answers again. A host's leases go back to the
dispatcher at once; the other hosts, or the successor, play them. A dead trainer is not replaced here: what it had
learned since its last checkpoint is gone, so the run goes back to that checkpoint first (`Loop.go_back`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
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
from rollweave.runtimes.ray_nodes import RayNodes
from rollweave.runtimes.resources import ClusterNode

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
    nodes: RayNodes
    hosts: dict[str, WorkerHandle] = field(default_factory=dict)

    async def ready(self, worker: WorkerHandle) -> None:
        """Wait until a worker can work."""
        started = self.clock.now()
        with self.clock.wait("driver", f"{worker.name} to start"):
            pid = await self.nodes.while_reachable(worker, worker.call("ready"))
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


StartEngine = Callable[[str, EngineSeat, ClusterNode | None], Awaitable[WorkerHandle]]
"""Starts an engine of this name; given a node, as a spare for one that still works there."""


@dataclass(slots=True)
class EngineKeeper:
    """Has a successor waiting that has imported everything: a process takes ten seconds to start, weights one."""

    crew: Crew
    name: str
    seat: EngineSeat
    spawn: StartEngine
    _worker: WorkerHandle = field(init=False)
    _id: EngineId = ""
    _spare: WorkerHandle | None = None
    _lives: int = 0

    async def begin(self) -> None:
        self.crew.fleet.on_change.append(self._end_if_lost)
        self._join(await self.spawn(self.name, self.seat, None))

    async def start(self) -> None:
        await self.crew.ready(self._worker)

    async def run(self) -> None:
        """Keep an engine running, until cancelled."""
        while True:
            self._spare = await self.spawn(self.name, self.seat, self._worker.node)
            self._spare.tell("warm_up")
            try:
                await self._work()
            except WorkerDied as death:
                died_at = self.crew.clock.now()
                self.crew.fleet.lose(self._id, str(death))
                # The fleet may have given it up before, which ended its process: that is the cause then.
                death = WorkerDied(self.crew.fleet.entries[self._id].cause, death.worker, death.out_of_reach)
                self._join(await self._successor(death))
                self.crew.restarts.back(death, self.crew.clock.now() - died_at)

    async def _work(self) -> None:
        """Ends when the engine dies, or with an engine at work in its own pool, if it had to work elsewhere."""
        nodes = self.crew.nodes
        working = asyncio.ensure_future(nodes.while_reachable(self._worker, self._worker.call("run")))
        returning = asyncio.ensure_future(nodes.until_returning(self.name))
        try:
            await asyncio.wait([working, returning], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working  # raises: an engine works until it dies
            await self._return()
        finally:
            working.cancel()
            returning.cancel()

    async def _return(self) -> None:
        """Its own pool is back: an engine there takes over, and this one goes when it holds nothing any more."""
        old, old_id = self._worker, self._id
        worker = await self.spawn(self.name, self.seat, None)
        await self.crew.ready(worker)
        self._join(worker)
        await self.crew.fleet.until_serving(self._id)
        await self.crew.fleet.retire(old_id, f"pool {self.seat.pool} is back")
        old.end()
        self._drop_spare()

    async def _successor(self, death: WorkerDied) -> WorkerHandle:
        dead = self._worker
        while True:
            dead.end()
            self.crew.restarts.died(death)
            if death.out_of_reach:
                self._drop_spare()
            dead, self._spare = self._spare or await self.spawn(self.name, self.seat, None), None
            try:
                await self.crew.ready(dead)
                return dead
            except WorkerDied as again:
                death = again

    async def leave(self, cause: str) -> None:
        """Give the engine up in order: what it holds moves first. (`run` is cancelled by the caller, before.)"""
        await self.crew.fleet.retire(self._id, cause)
        self._worker.end()
        self._drop_spare()
        self.crew.nodes.resources.release(self.name)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.end()
            self._spare = None

    def _join(self, worker: WorkerHandle) -> None:
        """A life joins the fleet. After the first one it is asked nothing before it has the weights of the others."""
        self._worker = worker
        self._lives += 1
        self._id = f"{worker.name}/{self._lives}"
        control = RayEngineControl(worker, self.crew.nodes.while_reachable)
        seat = self.seat
        pool, device = seat.pool or "engine", seat.device
        self.crew.fleet.join(EngineEntry(self._id, control, worker, pool, device, seat.tasks, seat.role))

    def _end_if_lost(self, entry: EngineEntry) -> None:
        """The fleet gives up an engine that was out of reach or took too long. Its process may still run, and would
        keep its successor away."""
        if entry.id == self._id and entry.state == "gone":
            self._worker.end()


class EngineTeam:
    """The engines of a run, as many in each pool as are wanted; that may change while the run goes on."""

    def __init__(self, crew: Crew, seats: Sequence[EngineSeat], spawn: StartEngine, tasks: asyncio.TaskGroup) -> None:
        self._crew = crew
        self._spawn = spawn
        self._tasks = tasks
        self._seats = {seat.pool: seat for seat in seats}
        self._numbers = {pool: itertools.count() for pool in self._seats}
        self._kept = {pool: [self._keeper(seat) for seat in seats if seat.pool == pool] for pool in self._seats}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def begin(self) -> None:
        await asyncio.gather(*(keeper.begin() for keeper in self._all()))

    async def start(self) -> None:
        await asyncio.gather(*(keeper.start() for keeper in self._all()))

    def run(self) -> None:
        """Keep them running from now on."""
        for keeper in self._all():
            self._running[keeper.name] = self._tasks.create_task(keeper.run())

    def stop(self) -> None:
        for task in self._running.values():
            task.cancel()

    async def scale(self, pool: str, wanted: int) -> None:
        """Let engines join a pool, or the last ones leave it."""
        kept = self._kept.get(pool)
        if kept is None or len(kept) == wanted:  # an order for a pool that the job no longer has, or an old one
            return
        self._crew.recorder.emit("fleet.scale", pool=pool, engines=wanted, before=len(kept))
        while len(kept) < wanted:
            keeper = self._keeper(self._seats[pool])
            kept.append(keeper)
            await keeper.begin()
            self._running[keeper.name] = self._tasks.create_task(self._join(keeper))
        while len(kept) > wanted:
            keeper = kept.pop()
            self._running.pop(keeper.name).cancel()
            await keeper.leave(f"pool {pool or 'engine'} was scaled down to {wanted}")

    async def _join(self, keeper: EngineKeeper) -> None:
        await keeper.start()
        await keeper.run()

    def _all(self) -> list[EngineKeeper]:
        return [keeper for kept in self._kept.values() for keeper in kept]

    def _keeper(self, seat: EngineSeat) -> EngineKeeper:
        number = next(self._numbers[seat.pool])
        name = f"{seat.pool or 'engine'}-{number}"
        return EngineKeeper(self._crew, "engine" if name == "engine-0" else name, seat, self._spawn)


@dataclass(slots=True)
class HostKeeper:
    crew: Crew
    name: str
    spawn: Callable[[str, str, FleetUpdate], Awaitable[WorkerHandle]]
    dispatcher: Dispatcher
    capacity: int
    _lives: int = 0
    _revision: int = field(init=False)
    """Of the fleet that the present life knew when it was started."""

    async def begin(self) -> None:
        self._lives += 1
        fleet = self.crew.fleet.update()
        self._revision = fleet.revision
        self.crew.hosts[self.name] = await self.spawn(self.name, self._client, fleet)

    async def start(self) -> None:
        await self.crew.ready(self.crew.hosts[self.name])

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
                    tasks.create_task(self.crew.nodes.while_reachable(worker, worker.call("run")))
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
            await self.begin()
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
