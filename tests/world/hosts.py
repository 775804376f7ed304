"""Modelled hosts: real `EnvHost`s behind a modelled transport, that can die and be replaced.

A host that dies takes its episodes with it and says nothing more; what it said before may still be on its way. The
driver notices some time later (`detach`), and a successor with nothing in hand is attached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.world.durations import NO_TIME, Duration

from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.link import HostLink, Packet
from rollweave.rollout.manager import Stage
from rollweave.seeds import derive, generator


@dataclass(frozen=True, slots=True)
class TransportModel:
    delay: Duration = NO_TIME
    drop_rate: float = 0.0
    duplicate_rate: float = 0.0


class SimulatedTransport:
    """One direction of a link that misbehaves: it delays, drops, duplicates and so reorders packets."""

    def __init__(self, model: TransportModel, receive: Callable[[Packet[Any]], None], seed: int) -> None:
        self._model = model
        self._receive = receive
        self._rng = generator(seed, "transport")
        self._cut = False

    def __call__(self, packet: Packet[Any]) -> None:
        if self._cut:
            return
        copies = 1 + (self._rng.random() < self._model.duplicate_rate)
        for _ in range(copies):
            delay = self._model.delay(self._rng)  # drawn per copy: a later packet may overtake
            if self._rng.random() >= self._model.drop_rate:
                asyncio.get_running_loop().call_later(delay, self._receive, packet)

    def cut(self) -> None:
        """Nothing more is taken on; what is on its way arrives."""
        self._cut = True


class SimulatedHost:
    """One place for a host, and which one is there now."""

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
        self._link: HostLink = self._dispatcher.attach(to_host, self._capacity)
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
