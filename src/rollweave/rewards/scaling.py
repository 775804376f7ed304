"""Decides how many instances compute rewards, and which instance serves which call.

An instance is a process, a function or a device that serves a few calls at once. The rule:

    a call comes     it takes a free seat; if none is free an instance starts for it, up to the maximum; else it queues
    a call leaves    its seat goes to the call that has queued longest
    no calls         an instance that has had no call for `idle_seconds` stops, down to the minimum

The rule knows no clock and starts nothing: each question comes with the time, and each answer says what the back end
has to do. How long a start takes is the back end's matter: a call may get a seat on an instance that is still
starting, and waits there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    maximum: int
    """Instances at most."""
    seats: int
    """Calls that an instance serves at once."""
    minimum: int = 0
    """Instances that are there from the start and stay; 0: scale from zero."""
    idle_seconds: float = 60.0


class Seating(NamedTuple):
    """A call has got a seat."""

    call: int
    instance: int
    starts_instance: bool
    """The back end has to start this instance: it is new."""


class InstanceUse(NamedTuple):
    """Instance-seconds so far. Utilisation is `busy / paid`."""

    busy: float
    """With at least one call."""
    paid: float
    """From the start of an instance until it stops."""


@dataclass(slots=True)
class _Instance:
    started: float
    since: float
    """When it became busy or, without calls, idle."""
    calls: int = 0


class InstanceScaler:
    """Holds the instances, their calls and the queue. A call queues only while every seat of the maximum is taken."""

    def __init__(self, limits: ScalingLimits, now: float) -> None:
        self._limits = limits
        self._instances = {number: _Instance(now, now) for number in range(limits.minimum)}
        self._numbers = itertools.count(limits.minimum)
        self._seats: dict[int, int] = {}
        """The instance of each call that is served."""
        self._queue: dict[int, None] = {}
        """In order; a dict, because a call may give up anywhere in it."""
        self._busy = self._paid = 0.0
        """Of the stretches that are over."""

    def ask(self, call: int, now: float) -> Seating | None:
        """Takes in a new call, under a number of its own. None: it queues, and a later `leave` seats it."""
        if call in self._seats or call in self._queue:
            raise ValueError(f"call {call} is here already: let it leave before it asks again")
        number = self._number_with_room()
        if number is not None:
            return self._sit(call, number, now, starts=False)
        if len(self._instances) < self._limits.maximum:
            number = next(self._numbers)
            self._instances[number] = _Instance(now, now)
            return self._sit(call, number, now, starts=True)
        self._queue[call] = None
        return None

    def leave(self, call: int, now: float) -> Seating | None:
        """The call has its answer, or the caller has given up; it may still queue. Returns which call gets its seat."""
        if call in self._queue:
            del self._queue[call]
            return None
        number = self._seats.pop(call)
        instance = self._instances[number]
        instance.calls -= 1
        if not instance.calls:
            self._busy += now - instance.since
            instance.since = now
        if not self._queue:
            return None
        following = next(iter(self._queue))
        del self._queue[following]
        return self._sit(following, number, now, starts=False)

    def next_stop(self) -> float | None:
        """When `stop_idle` has to be called. Calls that come meanwhile can only make it later."""
        if len(self._instances) <= self._limits.minimum:
            return None
        idle = (instance.since for instance in self._instances.values() if not instance.calls)
        first = min(idle, default=None)
        return None if first is None else first + self._limits.idle_seconds

    def stop_idle(self, now: float) -> list[int]:
        """The instances that the back end has to stop."""
        idle = [number for number, instance in self._instances.items() if not instance.calls]
        due = [number for number in idle if self._instances[number].since + self._limits.idle_seconds <= now]
        stopping = due[: len(self._instances) - self._limits.minimum]
        for number in stopping:
            self._paid += now - self._instances.pop(number).started
        return stopping

    def load(self, number: int) -> int:
        """How many calls an instance serves."""
        return self._instances[number].calls

    def use(self, now: float) -> InstanceUse:
        instances = self._instances.values()
        busy = self._busy + sum(now - instance.since for instance in instances if instance.calls)
        return InstanceUse(busy, self._paid + sum(now - instance.started for instance in instances))

    def _number_with_room(self) -> int | None:
        """The fullest instance with a free seat, so that others become idle and stop; the emptiest if none may stop."""
        limits = self._limits
        free = [number for number, instance in self._instances.items() if instance.calls < limits.seats]
        sign = 1 if limits.minimum == limits.maximum else -1
        return min(free, key=lambda number: sign * self._instances[number].calls, default=None)

    def _sit(self, call: int, number: int, now: float, starts: bool) -> Seating:
        instance = self._instances[number]
        if not instance.calls:
            instance.since = now
        instance.calls += 1
        self._seats[call] = number
        return Seating(call, number, starts)
