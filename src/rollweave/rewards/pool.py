"""An elastic pool of processes that compute rewards: it starts at zero, grows with the calls and stops when idle.

How many processes there are is decided by the rule that also drives the simulated judge (`rewards/scaling.py`), with
one seat for each process: a reward that crashes, hangs or needs too much memory takes its own call with it, and no
other. A process that has died is replaced when the next call gets its seat.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rollweave.clock import Clock, DeadlineExceeded
from rollweave.config.rewards import InstancesConfig
from rollweave.errors import RewardFailed
from rollweave.observability.memory import resident_mb
from rollweave.process.child import Child, ChildDied
from rollweave.rewards.answering import Answerer
from rollweave.rewards.delivery import TryFailed
from rollweave.rewards.scaling import InstanceScaler, ScalingLimits, Seating

_POOLS = itertools.count()

LEAK_SHARE = 0.5
"""A process that holds more than this share of its memory after a call is replaced."""


@dataclass(frozen=True, slots=True)
class LimitedAnswerers:
    """Inside a process: makes its answerers. Travels there by pickle."""

    base: Path
    memory_gb: float

    def __call__(self, target: str) -> LimitedAnswerer:
        limit = int(self.memory_gb * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        return LimitedAnswerer(Answerer(target, self.base))


@dataclass(frozen=True, slots=True)
class LimitedAnswerer:
    """Inside a process: one function, and how much memory the process holds after a call."""

    answerer: Answerer

    async def answer(self, body: bytes) -> tuple[str, float]:
        return await self.answerer.answer(body), resident_mb()


class PoolCounts(NamedTuple):
    """What a pool has done so far."""

    calls: int
    in_flight: int
    processes: int
    starts: int
    """Processes that were started: as many calls waited for one."""
    deaths: int
    """Processes that died or were killed under a call."""
    busy: float
    """Seconds in which a process computed a reward. A start is not one."""
    paid: float
    """Process-seconds, from the start of each process until it stops."""


def pool_id() -> str:
    """A name that no other pool has, on any machine."""
    return f"{platform.node()}/{os.getpid()}/{next(_POOLS)}"


class ElasticPool:
    """Processes that compute the rewards of any functions. Closed with `close`."""

    def __init__(self, config: InstancesConfig, clock: Clock, base: Path, timeout: float) -> None:
        """`timeout`: seconds of one call, from when its process has loaded the function."""
        self._config = config
        self._clock = clock
        self._base = base.resolve()
        self._timeout = timeout
        self._rule: InstanceScaler | None = None
        self._calls = itertools.count()
        self._queued: dict[int, asyncio.Future[Seating]] = {}
        self._children: dict[int, Child] = {}
        self._slots: dict[tuple[int, str], int] = {}
        """By process and function: the object there that answers its calls."""
        self._stop_timer: asyncio.TimerHandle | None = None
        self._made = self._starts = self._deaths = self._in_flight = 0
        self._busy = 0.0

    async def call(self, target: str, body: bytes) -> str:
        """The answer to a request of the wire format. Raises TryFailed or RewardFailed."""
        call = next(self._calls)
        seating = self._scaler().ask(call, self._clock.now())
        self._made += 1
        self._in_flight += 1
        try:
            if seating is None:
                self._queued[call] = self._clock.loop.create_future()
                with self._clock.wait(target, "a free process (instances.maximum)"):
                    seating = await self._queued[call]
            return await self._compute(seating.instance, target, body)
        finally:
            self._in_flight -= 1
            self._leave(call)

    def counts(self) -> PoolCounts:
        paid = self._scaler().use(self._clock.now()).paid
        alive = sum(child.alive for child in self._children.values())
        return PoolCounts(self._made, self._in_flight, alive, self._starts, self._deaths, self._busy, paid)

    def close(self) -> None:
        """End all processes; open calls fail."""
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        for number in list(self._children):
            self._end(number)

    async def start_minimum(self) -> None:
        """Start the processes that are always there, before the first call comes."""
        self._scaler()
        for number in range(self._config.minimum):
            await self._child(number)

    # ------------------------------------------------------------------------------------------------ one call

    async def _compute(self, number: int, target: str, body: bytes) -> str:
        child: Child | None = None
        try:
            child = await self._child(number)
            slot = await self._object(child, number, target)
            text, megabytes = await self._answer(child, slot, target, body)
        except ChildDied as death:
            self._lose(number)
            raise TryFailed("dropped", f"{target}: {death}") from death
        except DeadlineExceeded as late:
            self._lose(number)
            raise TryFailed("timeout", f"{target} was killed after {self._timeout:g} s (call.timeout)") from late
        except asyncio.CancelledError:
            self._end(number)  # the call may be stuck in it
            raise
        if megabytes > LEAK_SHARE * self._config.memory_gb * 1024:
            self._end(number)
        return text

    async def _answer(self, child: Child, slot: int, target: str, body: bytes) -> tuple[str, float]:
        began = self._clock.now()
        try:
            with self._clock.wait(target, "the process that computes it", self._timeout):
                text, megabytes = await child.call(slot, "answer", body)
        finally:
            self._busy += self._clock.now() - began
        return text, megabytes

    async def _child(self, number: int) -> Child:
        child = self._children.get(number)
        if child is None or not child.alive:
            self._end(number)
            factory = LimitedAnswerers(self._base, self._config.memory_gb)
            child = self._children[number] = await Child.start(pickle.dumps(factory), RewardFailed)
            self._starts += 1
        return child

    async def _object(self, child: Child, number: int, target: str) -> int:
        slot = self._slots.get((number, target))
        if slot is None:
            slot = child.take_slot()
            with self._clock.wait(target, "a process that loads it", self._timeout):
                await child.call(slot, "make", target)
            self._slots[number, target] = slot
        return slot

    def _lose(self, number: int) -> None:
        self._deaths += 1
        self._end(number)

    def _end(self, number: int) -> None:
        """End a process, if it is there. Its successor starts when the next call has its seat."""
        child = self._children.pop(number, None)
        self._slots = {place: slot for place, slot in self._slots.items() if place[0] != number}
        if child is not None:
            child.kill()

    # ------------------------------------------------------------------------------------------------- the rule

    def _scaler(self) -> InstanceScaler:
        """Made with the first question, because only then the clock runs."""
        if self._rule is None:
            limits = self._config
            rule = ScalingLimits(limits.maximum, 1, limits.minimum, limits.idle_seconds)
            self._rule = InstanceScaler(rule, self._clock.now())
        return self._rule

    def _leave(self, call: int) -> None:
        following = self._scaler().leave(call, self._clock.now())
        self._queued.pop(call, None)
        if following is not None:
            seat = self._queued[following.call]
            if not seat.done():  # else it was given up in this moment, and leaves the seat as soon as it runs
                seat.set_result(following)
        self._plan_stop()

    def _plan_stop(self) -> None:
        if self._stop_timer is None and (due := self._scaler().next_stop()) is not None:
            self._stop_timer = self._clock.loop.call_at(due, self._stop_idle)

    def _stop_idle(self) -> None:
        self._stop_timer = None
        for number in self._scaler().stop_idle(self._clock.now()):
            self._end(number)
        self._plan_stop()
