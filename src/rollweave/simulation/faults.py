"""Outages: an engine or a host is gone from one moment on, and a successor comes some time later.

They are a plain schedule, not a rate: a test can list, draw and shrink them, and once the last one is over no timer
of theirs keeps the virtual clock from noticing a deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rollweave.clock import Clock


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
    engines: Sequence[Mortal],
    hosts: Sequence[ReplaceableHost],
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
