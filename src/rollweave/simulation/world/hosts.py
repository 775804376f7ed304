"""Modelled hosts: real `EnvHost`s behind a modelled transport, that can die and be replaced.

A host that dies takes its episodes with it and says nothing more; what it said before may still be on its way. The
driver notices some time later (`detach`), and a successor with nothing in hand is attached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.link import Endpoint
from rollweave.rollout.manager import Stage
from rollweave.rollout.messages import Cancel, Lease, Report
from rollweave.seeds import derive
from rollweave.simulation.world.transport import SimulatedTransport, TransportModel


class SimulatedHost:
    """One place for a host, and who is there now."""

    def __init__(
        self, dispatcher: Dispatcher, stage: Callable[[], Stage], capacity: int, transport: TransportModel, seed: int
    ) -> None:
        self._dispatcher = dispatcher
        self._stage = stage
        self._capacity = capacity
        self._transport = transport
        self._seed = seed
        self._lives = 0

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Attach a host that plays until it is killed."""
        self._lives += 1
        seed = derive(self._seed, "life", self._lives)
        host: EnvHost
        to_host = SimulatedTransport(self._transport, lambda packet: host.link.receive(packet), derive(seed, "to host"))
        self._link: Endpoint[Lease | Cancel, Report] = self._dispatcher.attach(to_host, self._capacity)
        to_driver = SimulatedTransport(self._transport, self._link.receive, derive(seed, "to driver"))
        host = EnvHost(self._stage(), to_driver)
        self._wires = (to_host, to_driver)
        self._running = tasks.create_task(host.run(), name=f"host {self._seed}")

    def kill(self) -> None:
        for wire in self._wires:
            wire.cut()
        self._running.cancel()

    def forget(self) -> None:
        """The driver has noticed."""
        self._dispatcher.detach(self._link)
