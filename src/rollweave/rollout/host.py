"""EnvHost: runs many EnvManagers on one loop.

Inline it lives in the driver; on Ray it is an actor. It holds nothing that cannot be leased again. Whatever it is
told, in whatever order: every lease it begins is reported once. A `Cancel` may overtake its lease on the way; then
the lease is reported, unplayed, when it arrives. One that comes after the report changes nothing.
"""

from __future__ import annotations

import asyncio
import itertools

from rollweave.fleet.router import Route
from rollweave.fleet.view import FleetUpdate
from rollweave.rollout.link import Endpoint, Lease, Moved, ToDriver, ToHost, Transport
from rollweave.rollout.manager import EnvManager, Stage


class EnvHost:
    def __init__(self, stage: Stage, transport: Transport) -> None:
        self._stage = stage
        self._tasks: asyncio.TaskGroup | None = None
        self._early: list[Lease] = []
        self._playing: dict[str, EnvManager] = {}
        self._cancelled: set[str] = set()
        """Leases that were cancelled before they were begun."""
        self._moves = itertools.count()
        self.link: Endpoint[ToDriver, ToHost] = Endpoint(transport, self._hear)
        stage.proxy.on_route = self._tell_moved

    async def run(self) -> None:
        """Play what is leased, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            early, self._early = self._early, []
            for lease in early:
                self._start(lease)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None  # leases that still arrive are not begun

    def _hear(self, message: ToHost) -> None:
        if isinstance(message, Lease):
            self._start(message)
        elif isinstance(message, FleetUpdate):
            self._stage.proxy.update(message)
        elif message.lease in self._playing:
            self._playing[message.lease].cancel()
        elif not self.link.has_heard(message.lease) or any(lease.id == message.lease for lease in self._early):
            self._cancelled.add(message.lease)

    def _start(self, lease: Lease) -> None:
        if self._tasks is None:  # heard before run() began, or after it ended
            self._early.append(lease)
            return
        manager = self._playing[lease.id] = EnvManager(self._stage, lease)
        manager.cancelled = lease.id in self._cancelled
        self._cancelled.discard(lease.id)
        self._tasks.create_task(self._play(manager), name=manager.name)

    def _tell_moved(self, attempt: str, route: Route) -> None:
        self.link.say(f"moved.{next(self._moves)}", Moved(attempt, route))

    async def _play(self, manager: EnvManager) -> None:
        report = await manager.play()
        del self._playing[report.lease]
        self.link.say(report.lease, report)
