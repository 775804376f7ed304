"""The time that hosts, links and driver take for a turn, where it was measured.

On one machine all of it runs on the loop of one process, which takes what has come up as a batch: the answers of one
engine step travel together, and so do the requests that they lead to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from rollweave.clock import Clock
from rollweave.config.cluster import GENERATES
from rollweave.config.measured import HostTimes
from rollweave.config.scenario import Scenario
from rollweave.environments.protocol import Observation, StepResult
from rollweave.simulation.costs.measured import measured, overlapped
from rollweave.simulation.hardware.scripted_environment import ScriptedEnvironment
from rollweave.simulation.workloads.episode import Episode
from rollweave.simulation.workloads.source import Workload
from rollweave.tasks import Task


def environments(scenario: Scenario, workload: Workload, clock: Clock) -> Callable[[Task], ScriptedEnvironment]:
    """Makes the environments of a scenario, behind the host's line where one was measured."""
    pool = next(pool for pool in scenario.cluster.pools if pool.role in GENERATES)
    found = measured(scenario, pool)
    if found is None:
        return lambda task: ScriptedEnvironment(workload.episode(task), clock)
    line = HostLine(found.host, found.contention.host if overlapped(scenario, pool) else 1.0, clock)
    return lambda task: HostedEnvironment(workload.episode(task), clock, line)


class HostLine:
    """Takes whatever has come up at one moment as one batch; what comes up meanwhile is the next one."""

    def __init__(self, times: HostTimes, slower: float, clock: Clock) -> None:
        self._message = times.message * slower
        self._turn = times.turn * slower
        self._clock = clock
        self._began = 0.0
        self._batch: list[asyncio.Future[None]] = []
        self._next: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def pass_on(self) -> None:
        """One turn, with all the others of its batch."""
        place: asyncio.Future[None] = self._clock.loop.create_future()
        if self._batch and self._clock.now() > self._began:
            self._next.append(place)
        else:
            self._begin([*self._batch, place])
        await place

    def _begin(self, batch: list[asyncio.Future[None]]) -> None:
        self._batch, self._began = batch, self._clock.now()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.loop.call_at(self._began + self._message + self._turn * len(batch), self._end)

    def _end(self) -> None:
        done, self._batch, self._timer = self._batch, [], None
        for place in done:
            if not place.done():  # whoever waited may have been cancelled
                place.set_result(None)
        if self._next:
            waiting, self._next = self._next, []
            self._begin(waiting)


class HostedEnvironment(ScriptedEnvironment):
    """An environment whose answers pass through the host's line."""

    def __init__(self, episode: Episode, clock: Clock, line: HostLine) -> None:
        super().__init__(episode, clock)
        self._line = line

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        first = await super().reset(seed, data)
        await self._line.pass_on()
        return first

    async def step(self, action: str) -> StepResult:
        result = await super().step(action)
        await self._line.pass_on()
        return result
