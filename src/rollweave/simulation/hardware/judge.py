"""A judge: a language model that scores trajectories, on devices of its own or on functions.

Devices of its own are there all the time. Functions start when a call finds nobody warm, which takes a cold start,
and go when they had nothing to do for a while; they are paid for as long as they live, and several jobs may share
them. Utilisation is the time with something to do over the time paid for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from rollweave.clock import Clock
from rollweave.config.workload import Distribution
from rollweave.seeds import generator
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.durations import count, sampler
from rollweave.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class JudgeModel:
    costs: EngineCosts
    devices: int
    """At most."""
    answer_tokens: Distribution
    seconds: Distribution | None
    """Of a call; none: by roofline."""
    concurrency: int
    elastic: bool
    """On functions: none at the start, and paid for while they live."""
    cold_start: float = 0.0
    idle_seconds: float = 60.0
    io_seconds: float = 0.0


class JudgeUse(NamedTuple):
    """Device-seconds so far."""

    busy: float
    paid: float
    calls: int
    cold_starts: int


class _Device:
    def __init__(self, born: float) -> None:
        self.calls = 0
        self.born = born
        self.busy_since = 0.0
        self.served = 0
        """Calls so far: tells a cold start, and a shutdown timer whether anything happened meanwhile."""


class Judge:
    def __init__(self, model: JudgeModel, clock: Clock, seed: int) -> None:
        self._model = model
        self._clock = clock
        self._seed = seed
        self._devices = [] if model.elastic else [_Device(0.0) for _ in range(model.devices)]
        self._line: deque[asyncio.Future[None]] = deque()
        self._busy = self._paid = 0.0
        self._calls = self._cold_starts = 0

    async def score(self, trajectory: Trajectory) -> None:
        """Returns when the judge has answered."""
        device = await self._seat()
        cold = self._model.cold_start if self._model.elastic and device.served == 1 else 0.0
        try:
            await self._clock.sleep(cold + self._seconds(trajectory, device.calls))
        finally:
            self._free(device)

    def use(self) -> JudgeUse:
        now = self._clock.now()
        busy = self._busy + sum(now - device.busy_since for device in self._devices if device.calls)
        paid = self._paid + sum(now - device.born for device in self._devices)
        return JudgeUse(busy, paid, self._calls, self._cold_starts)

    async def _seat(self) -> _Device:
        while (device := self._room()) is None:
            turn: asyncio.Future[None] = self._clock.loop.create_future()
            self._line.append(turn)
            await turn
        self._calls += 1
        device.calls += 1
        device.served += 1
        if device.calls == 1:
            device.busy_since = self._clock.now()
        return device

    def _room(self) -> _Device | None:
        """The fullest device with room: others may then be shut down. Dedicated ones share the load instead."""
        model = self._model
        free = [device for device in self._devices if device.calls < model.concurrency]
        if free:
            sign = -1 if model.elastic else 1
            return min(free, key=lambda device: sign * device.calls)
        if model.elastic and len(self._devices) < model.devices:
            self._cold_starts += 1
            self._devices.append(_Device(self._clock.now()))
            return self._devices[-1]
        return None

    def _seconds(self, trajectory: Trajectory, calls: int) -> float:
        model = self._model
        rng = generator(self._seed, "judge", trajectory.id)
        if model.seconds is not None:
            return model.io_seconds + sampler(model.seconds)(rng)
        costs, context = model.costs, trajectory.length
        answer = count(sampler(model.answer_tokens), rng)
        reading = costs.recompute(context, pairs(context, context))
        per_token = costs.fixed(calls) + costs.per_cached_token * (context + answer / 2) * calls
        return model.io_seconds + reading + answer * per_token

    def _free(self, device: _Device) -> None:
        device.calls -= 1
        now = self._clock.now()
        if not device.calls:
            self._busy += now - device.busy_since
            if self._model.elastic:
                self._clock.loop.call_later(self._model.idle_seconds, self._shut_down, device, device.served)
        while self._line:
            turn = self._line.popleft()
            if not turn.done():  # it may have met its deadline
                turn.set_result(None)
                break

    def _shut_down(self, device: _Device, served: int) -> None:
        if not device.calls and device.served == served:
            self._devices.remove(device)
            self._paid += self._clock.now() - device.born
