"""A transport that misbehaves: delays, drops, duplicates and so reorders packets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollweave.rollout.link import Packet
from rollweave.seeds import generator
from rollweave.simulation.durations import NO_TIME, Duration


@dataclass(frozen=True, slots=True)
class TransportModel:
    delay: Duration = NO_TIME
    drop_rate: float = 0.0
    duplicate_rate: float = 0.0


class SimulatedTransport:
    """One direction of a link."""

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
