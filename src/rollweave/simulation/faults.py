"""Outages: an engine is gone from one moment on, and a successor comes some time later.

An engine's death is known at once, as on Ray, where the call that keeps it running fails.

Outages are a plain schedule, not a rate: once the last one is over, no timer of theirs keeps the virtual clock from
noticing a deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

from rollweave.clock import Clock
from rollweave.config.scenario import OutageConfig
from rollweave.engines.protocol import Engine
from rollweave.fleet.fleet import EngineEntry, EngineId, Fleet


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

    def begin(self) -> None:
        """An engine joins."""
        self.taken = True
        self._lives += 1
        self._engine = self._make()
        self.id = f"{self._pool}-{self._number}/{self._lives}"
        self._fleet.join(self._enter(self.id, self._engine))

    def end(self, reason: str) -> None:
        """The engine dies."""
        self.taken = False
        self._engine.die()
        self._fleet.lose(self.id, reason)

    async def go_down(self, seconds: float, clock: Clock) -> None:
        """The engine is killed, and has a successor after so many seconds; `inf`: it has none."""
        if not self.taken:  # it is gone already
            return
        self.end("killed")
        if seconds < inf:
            await clock.sleep(seconds)
            self.begin()


async def suffer(outages: Sequence[OutageConfig], places: Sequence[EnginePlace], clock: Clock) -> None:
    """Let the outages happen."""
    async with asyncio.TaskGroup() as going:
        for outage in sorted(outages, key=lambda outage: outage.at):
            await clock.sleep(max(0.0, outage.at - clock.now()))
            going.create_task(places[outage.engine % len(places)].go_down(outage.seconds, clock))


def see_every_failure(tasks: asyncio.TaskGroup) -> None:
    """What goes wrong in a callback of the loop ends the run, where asyncio would only log it."""

    async def fail(context: dict[str, Any]) -> None:
        raise context.get("exception") or RuntimeError(context["message"])

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        tasks.create_task(fail(context), name="failure in a callback")

    asyncio.get_running_loop().set_exception_handler(handle)
