"""Outages: an engine or a host is gone from one moment on, and a successor comes some time later.

An engine's death is known at once, as on Ray, where the call that keeps it running fails; a host's is noticed later.

They are a plain schedule, not a rate: a test can list, draw and shrink them, and once the last one is over no timer
of theirs keeps the virtual clock from noticing a deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Protocol

from rollweave.clock import Clock
from rollweave.engines.protocol import Engine
from rollweave.fleet.fleet import EngineEntry, EngineId, Fleet


@dataclass(frozen=True, slots=True)
class Outage:
    what: Literal["engine", "host", "join", "leave"]
    """`engine` and `host`: one dies and has a successor. `join`: one engine more. `leave`: an engine goes in order."""
    number: int
    """Which one; counted modulo how many there are."""
    at: float
    seconds: float = 0.0
    """Until there is a successor; `inf`: there is none."""


class MortalEngine(Engine, Protocol):
    def die(self) -> None:
        """The process is gone: every call fails with `EngineGone`, also those that are open."""
        ...


Enter = Callable[[EngineId, MortalEngine], EngineEntry]
"""How an engine is entered into the fleet's list: its pool, device, tasks and role."""


class EnginePlace:
    """One place for an engine, and which one is there now. Each life of it joins the fleet under an id of its own."""

    def __init__(self, fleet: Fleet, pool: str, number: int, make: Callable[[], MortalEngine], enter: Enter) -> None:
        self._fleet = fleet
        self._pool = pool
        self._number = number
        self._make = make
        self._enter = enter
        self._lives = 0
        self.taken = False

    def beside(self, number: int) -> EnginePlace:
        """Another seat of the same pool."""
        return EnginePlace(self._fleet, self._pool, number, self._make, self._enter)

    def begin(self) -> None:
        """An engine joins."""
        self.taken = True
        self._lives += 1
        self._engine = self._make()
        self.id = f"{self._pool}-{self._number}/{self._lives}"
        self._fleet.join(self._enter(self.id, self._engine))

    def kill(self) -> None:
        self.taken = False
        self._engine.die()
        self._fleet.lose(self.id, "killed")

    async def leave(self) -> None:
        """Go when the other engines have taken over what it holds; stay if there is no other."""
        others = [entry for entry in self._fleet.serving() if entry.id != self.id]
        if all(entry.role == "prefill" for entry in others):
            return
        self.taken = False
        self._fleet.use([entry.id for entry in others])
        await self._fleet.emptied([self.id])
        self._engine.die()
        self._fleet.lose(self.id, "left")


class ReplaceableHost(Protocol):
    def kill(self) -> None: ...

    def forget(self) -> None:
        """The driver has noticed its death."""
        ...

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """A successor."""
        ...


def see_every_failure(tasks: asyncio.TaskGroup) -> None:
    """What goes wrong in a callback of the loop ends the run, where asyncio would only log it."""

    async def fail(context: dict[str, Any]) -> None:
        raise context.get("exception") or RuntimeError(context["message"])

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        tasks.create_task(fail(context), name="failure in a callback")

    asyncio.get_running_loop().set_exception_handler(handle)


async def suffer(
    outages: Sequence[Outage],
    engines: Sequence[EnginePlace],
    hosts: Sequence[ReplaceableHost],
    clock: Clock,
    tasks: asyncio.TaskGroup,
) -> None:
    """Let the outages happen. A host's that begins before another host's is over waits for its end."""
    seats = list(engines)
    async with asyncio.TaskGroup() as engines_going:
        for outage in sorted(outages, key=lambda outage: outage.at):
            await clock.sleep(max(0.0, outage.at - clock.now()))
            if outage.what == "host":
                await _lose_host(hosts[outage.number % len(hosts)], outage.seconds, clock, tasks)
            elif outage.what == "join":
                seats.append(seats[0].beside(len(seats)))
                seats[-1].begin()
            else:
                engines_going.create_task(_lose_engine(seats[outage.number % len(seats)], outage, clock))


async def _lose_engine(seat: EnginePlace, outage: Outage, clock: Clock) -> None:
    if not seat.taken:  # it is gone already
        return
    if outage.what == "leave":
        await seat.leave()
        return
    seat.kill()
    if outage.seconds < inf:
        await clock.sleep(outage.seconds)
        seat.begin()


async def _lose_host(host: ReplaceableHost, seconds: float, clock: Clock, tasks: asyncio.TaskGroup) -> None:
    host.kill()
    await clock.sleep(seconds / 2)  # until the driver notices
    host.forget()
    await clock.sleep(seconds / 2)
    host.begin(tasks)
