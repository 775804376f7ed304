"""Outages: an engine or a host is gone from one moment on, and a successor comes some time later.

They are a plain schedule, not a rate: a test can list, draw and shrink them, and once the last one is over no timer
of theirs keeps the virtual clock from noticing a deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rollweave.clock import Clock
from rollweave.simulation.world.hosts import SimulatedHost


@dataclass(frozen=True, slots=True)
class Outage:
    what: Literal["engine", "host"]
    number: int
    """Which one; counted modulo how many there are."""
    at: float
    seconds: float


class Mortal(Protocol):
    def die(self) -> None: ...

    def revive(self) -> None: ...


async def suffer(
    outages: Sequence[Outage],
    engines: Sequence[Mortal],
    hosts: Sequence[SimulatedHost],
    clock: Clock,
    tasks: asyncio.TaskGroup,
) -> None:
    """Let the outages happen. One that begins before another is over waits for its end."""
    for outage in sorted(outages, key=lambda outage: outage.at):
        await clock.sleep(max(0.0, outage.at - clock.now()))
        if outage.what == "engine":
            engine = engines[outage.number % len(engines)]
            engine.die()
            await clock.sleep(outage.seconds)
            engine.revive()
        else:
            host = hosts[outage.number % len(hosts)]
            host.kill()
            await clock.sleep(outage.seconds / 2)  # until somebody notices
            host.forget()
            await clock.sleep(outage.seconds / 2)
            host.begin(tasks)
