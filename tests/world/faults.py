"""Outages of the tests' world: engines and hosts die and have successors, engines join and leave.

An engine's death is known at once (`simulation/faults.py`); a host's is noticed later. A test can list, draw and shrink
outages, because they are a plain schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.world.hosts import SimulatedHost
from tests.world.trainer import SimulatedTrainer

from rollweave.clock import Clock
from rollweave.simulation.faults import EnginePlace


@dataclass(frozen=True, slots=True)
class Outage:
    what: Literal["engine", "host", "trainer", "join", "leave"]
    """`engine`, `host`, `trainer`: one dies and has a successor. `join`: one engine more. `leave`: an engine goes in
    order."""
    number: int
    """Which one; counted modulo how many there are."""
    at: float
    seconds: float = 0.0
    """Until there is a successor; `inf`: there is none."""


class Seat(EnginePlace):
    def beside(self, number: int) -> Seat:
        """Another seat of the same pool."""
        return Seat(self._fleet, self._pool, number, self._make, self._enter)

    async def leave(self) -> None:
        """Go when the other engines have taken over what it holds; stay if there is no other."""
        others = [entry for entry in self._fleet.serving() if entry.id != self.id]
        if not self.taken or all(entry.role == "prefill" for entry in others):
            return
        self.taken = False
        self._fleet.use([entry.id for entry in others])
        await self._fleet.emptied([self.id])
        self.end("left")


async def suffer(
    outages: Sequence[Outage],
    engines: Sequence[Seat],
    hosts: Sequence[SimulatedHost],
    trainer: SimulatedTrainer,
    clock: Clock,
    tasks: asyncio.TaskGroup,
) -> None:
    """Let the outages happen. A host's that begins before another host's is over waits for its end."""
    seats = list(engines)
    async with asyncio.TaskGroup() as engines_going:
        for outage in sorted(outages, key=lambda outage: outage.at):
            await clock.sleep(max(0.0, outage.at - clock.now()))
            match outage.what:
                case "host":
                    await _lose_host(hosts[outage.number % len(hosts)], outage.seconds, clock, tasks)
                case "trainer":
                    trainer.die(outage.seconds)
                case "join":
                    seats.append(seats[0].beside(len(seats)))
                    seats[-1].begin()
                case "leave":
                    engines_going.create_task(seats[outage.number % len(seats)].leave())
                case "engine":
                    engines_going.create_task(seats[outage.number % len(seats)].go_down(outage.seconds, clock))


async def _lose_host(host: SimulatedHost, seconds: float, clock: Clock, tasks: asyncio.TaskGroup) -> None:
    host.kill()
    await clock.sleep(seconds / 2)  # until the driver notices
    host.forget()
    await clock.sleep(seconds / 2)
    host.begin(tasks)
