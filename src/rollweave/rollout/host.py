"""EnvHost: runs many EnvManagers on one loop.

Inline it lives in the driver; on Ray it is an actor. It holds nothing that cannot be leased again.
"""

from __future__ import annotations

import asyncio

from rollweave.rollout.link import Endpoint, Transport
from rollweave.rollout.manager import EnvManager, Stage
from rollweave.rollout.messages import Lease, Report


class EnvHost:
    def __init__(self, stage: Stage, transport: Transport) -> None:
        self._stage = stage
        self._tasks: asyncio.TaskGroup | None = None
        self._early: list[Lease] = []
        self.link: Endpoint[Report, Lease] = Endpoint(transport, self._start)

    async def run(self) -> None:
        """Play what is leased, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for lease in self._early:
                self._start(lease)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None  # leases that still arrive are not begun

    def _start(self, lease: Lease) -> None:
        if self._tasks is None:  # heard before run() began, or after it ended
            self._early.append(lease)
            return
        self._tasks.create_task(self._play(lease), name=f"episode {lease.id}")

    async def _play(self, lease: Lease) -> None:
        report = await EnvManager(self._stage, lease).play()
        self.link.say(report.lease, report)
