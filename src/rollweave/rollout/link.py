"""The messages between the driver and its hosts, and the link that carries them: each is heard exactly once.

Each end of a link keeps what it said until the other end confirms it. What stays unconfirmed for `RETRY_SECONDS` is
said again. Each end remembers what it has heard, so a repetition changes nothing. Everything said within one tick of
the loop travels as one packet, and confirmations travel with it; one that finds no message to travel with waits for
`CONFIRM_SECONDS`, because a packet between two processes costs about a millisecond of computing.

A transport carries the packets. Within one process it is the other end's `receive`. On Ray, `runtimes/ray_keepers.py`
and `runtimes/ray_workers.py` carry them between processes. `tests/world/hosts.py` delays, drops, duplicates and
so reorders them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rollweave.engines.protocol import Sampling
from rollweave.fleet.fleet import EngineId, FleetUpdate
from rollweave.fleet.router import Route
from rollweave.rewards.dispatch import Scored
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory

Out = TypeVar("Out")
In = TypeVar("In")

RETRY_SECONDS = 5.0
"""Longer than the round trip of a transport that works, so that a message is seldom said twice; short enough that an
environment whose lease was lost does not stand idle for long."""

CONFIRM_SECONDS = 1.0
"""Well below `RETRY_SECONDS`, so that nothing is said again because its confirmation waits."""

REMEMBERED = 100_000
"""Ids an end remembers having heard. A repetition that comes later than that many other messages would be heard
again."""


@dataclass(slots=True)
class Packet(Generic[Out]):
    messages: dict[str, Out] = field(default_factory=dict)
    confirmed: list[str] = field(default_factory=list)


Transport = Callable[[Packet[Any]], None]
"""Takes a packet to the other end. The packet may be late, lost or doubled."""


class Endpoint(Generic[Out, In]):
    """One end of a link: says `Out`, hears `In`."""

    def __init__(self, transport: Transport, hear: Callable[[In], None]) -> None:
        self._transport = transport
        self._hear = hear
        self._unconfirmed: dict[str, Out] = {}
        self._next: Packet[Out] = Packet()
        self._flush_scheduled = False
        self._is_closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._confirm: asyncio.TimerHandle | None = None
        self._heard: OrderedDict[str, None] = OrderedDict()
        """Oldest first. (A plain dict would look for its oldest among all the places that are empty by now.)"""

    def say(self, id: str, message: Out) -> None:
        if self._is_closed:
            return
        self._unconfirmed[id] = message
        self._next.messages[id] = message
        self._schedule_flush()

    def receive(self, packet: Packet[In]) -> None:
        for id in packet.confirmed:
            self._unconfirmed.pop(id, None)
        if not self._unconfirmed and self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for id, message in packet.messages.items():
            self._next.confirmed.append(id)
            if id not in self._heard:
                self._heard[id] = None
                if len(self._heard) > REMEMBERED:
                    self._heard.popitem(last=False)
                self._hear(message)
        if packet.messages and not self._flush_scheduled and self._confirm is None:
            self._confirm = asyncio.get_running_loop().call_later(CONFIRM_SECONDS, self._flush)

    def has_heard(self, id: str) -> bool:
        """Whether a message has arrived (within what is remembered)."""
        return id in self._heard

    def close(self) -> None:
        """The other end is gone: what is still said goes nowhere, and nothing is said again."""
        self._is_closed = True
        self._unconfirmed.clear()
        for timer in (self._retry, self._confirm):
            if timer is not None:
                timer.cancel()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._is_closed:
            return
        self._flush_scheduled = False
        if self._confirm is not None:
            self._confirm.cancel()
            self._confirm = None
        packet, self._next = self._next, Packet()
        if packet.messages or packet.confirmed:
            self._transport(packet)
        if self._unconfirmed and self._retry is None:
            said = list(self._unconfirmed)
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._repeat, said)

    def _repeat(self, said: list[str]) -> None:
        """Say again what was said before the timer began, and is still unconfirmed."""
        self._retry = None
        self._next.messages.update({id: self._unconfirmed[id] for id in said if id in self._unconfirmed})
        self._schedule_flush()


@dataclass(slots=True)
class Lease:
    """Permission to play one episode. It can be issued again if its host dies."""

    id: str
    """Of the attempt: group, member and try, as in `17.3.0`."""
    group: int
    member: int
    tries: int
    """How often this member was leased before."""
    task: Task
    seed: int
    """What is sampled in turn t depends on this and t only."""
    sampling: Sampling
    version: int
    """The engine version at admission."""
    engine: EngineId | None = None
    """Where the trajectory is routed to; filled in when the lease is handed to a host. None: no engine was open."""
    moved: int = -1
    """The latest of its host's moves that the driver has heard of."""
    prefill: EngineId | None = None
    """The engine that computes its contexts, if `engine` only decodes."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop playing a lease. It is reported all the same, as `aborted` (or as it ended, if that was sooner).

    If its episode has ended, its reward is not wanted any more: that is not answered.
    """

    attempt: str
    """Or the call of a `Score`."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A host has routed a trajectory again: its engine is gone or drains, or there was none before."""

    attempt: str
    route: Route
    number: int
    """Of the host's moves: of two of one lease the later is true, in whatever order they arrive."""


@dataclass(frozen=True, slots=True)
class LateAnswers:
    """Answers of an engine that had been given up: they were not used. (Its trajectories have moved.)"""

    engine: EngineId
    answers: int


@dataclass(frozen=True, slots=True)
class Score:
    """Compute the rewards of an episode that another host played, and answer with `Scored`."""

    trajectory: Trajectory
    call: str
    """Unlike the attempt's, never used again: the same rewards may be asked for twice."""


@dataclass(slots=True)
class Report:
    """How a lease ended: every lease is reported once.

    Its slot is free from now on. A reward that failed for good leaves the trajectory finished but unscored.
    """

    attempt: str
    trajectory: Trajectory
    reward_failed: bool = False
    host_died: bool = False
    """How far it got is not known: said by the dispatcher in the place of a host that is gone."""
    awaited: tuple[str, ...] = ()
    """The rewards that are still to be computed: the host has begun with them, and says `Scored` when it has them."""
    host: int | None = None
    """The host that played it; written by the dispatcher."""
    moved: Moved | None = None
    """Its last move, in case the report arrives before the move itself."""


ToHost = Lease | Cancel | Score | FleetUpdate
ToDriver = Report | Scored | Moved | LateAnswers
HostLink = Endpoint[ToHost, ToDriver]
"""The driver's end of the link to a host."""
