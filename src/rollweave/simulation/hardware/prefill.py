"""A simulated prefill engine: it computes contexts, one after the other, and hands their KV caches to decode engines.

It keeps what it computed, so that a trajectory's next turn needs only what is new; only that travels, if the same
engine decodes it. Which trajectories it computes for is decided by the router (`fleet/router.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import replace
from typing import NamedTuple

from rollweave.clock import Clock
from rollweave.config.hardware import WeightTimes
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.hardware.modelled import NO_TIME, ModelledEngine, simulated_fingerprint


class _Cache(NamedTuple):
    tokens: int
    version: int
    """The weights that it was computed with."""
    decode_on: str | None
    """The engine that has it too."""


class _Context(NamedTuple):
    """A context to be computed, and the call that waits for it."""

    request: Request
    done: asyncio.Future[Completion]


class PrefillEngine(ModelledEngine):
    def __init__(self, clock: Clock, costs: EngineCosts, *, number: int = 0, weights: WeightTimes = NO_TIME) -> None:
        super().__init__(clock, number, weights)
        self._costs = costs
        self._line: deque[_Context] = deque()
        self._open: dict[str, _Context] = {}
        """By request, until it is handed over."""
        self._caches: dict[str, _Cache] = {}
        """By trajectory."""
        self._ends_at = 0.0
        """When the context that is being computed is done."""
        self._timer: asyncio.TimerHandle | None = None
        self._suspensions = 0
        self.counters = EngineStats()

    def generate(self, request: Request) -> Awaitable[Completion]:
        """Answers without tokens, once the engine that decodes has the KV cache."""
        self._check_alive()
        context = _Context(request, self._clock.loop.create_future())
        self._open[request.id] = context
        self._line.append(context)
        self._begin_next()
        return context.done

    def abort(self, request_id: str) -> None:
        if request_id in self._open:
            self._answer(self._open[request_id], aborted=True)

    def release(self, trajectory: str) -> None:
        self._caches.pop(trajectory, None)

    async def suspend(self, asleep: bool = False) -> None:
        """The context that is being computed is finished first."""
        self._check_alive()
        self._suspensions += 1
        await self._clock.sleep(max(0.0, self._ends_at - self._clock.now()))

    async def resume(self) -> None:
        self._check_alive()
        self._suspensions -= 1
        self._begin_next()

    async def commit(self, version: int) -> None:
        await self._swap(version)
        self.counters.version = version

    def busy_seconds(self) -> float:
        return self.counters.busy_seconds - max(0.0, self._ends_at - self._clock.now())

    async def stats(self) -> EngineStats:
        self._check_alive()
        return replace(
            self.counters,
            busy_seconds=self.busy_seconds(),
            prefill_seconds=self.busy_seconds(),
            running=int(self._timer is not None),
            waiting=sum(not context.done.done() for context in self._line),
            checksum=simulated_fingerprint(self.counters.version).checksum,
        )

    def die(self) -> None:
        self._dead = True
        self.counters.busy_seconds, self._ends_at = self.busy_seconds(), self._clock.now()
        if self._timer is not None:
            self._timer.cancel()
        for context in self._open.values():
            if not context.done.done():
                context.done.set_exception(self._gone())

    def _begin_next(self) -> None:
        if self._suspensions or self._dead:
            return
        while self._timer is None and self._line:
            context = self._line.popleft()
            if context.done.done():  # it was aborted, or its caller was cancelled
                continue
            seconds, new = self._compute(context.request)
            self._ends_at = self._clock.now() + seconds
            self.counters.busy_seconds += seconds
            self._timer = self._clock.loop.call_at(self._ends_at, self._end, context, new)

    def _compute(self, request: Request) -> tuple[float, int]:
        """Book it; returns how long it takes, and how many tokens the decode engine does not have."""
        version = self.counters.version
        length = len(request.tokens) + sum(len(span.tokens) for span in request.begun)
        cache = self._caches.get(request.trajectory, _Cache(0, version, None))
        known = min(cache.tokens, length - 1)
        again = 0 if cache.version == version else known
        new = length - known + again
        self._caches[request.trajectory] = _Cache(length, version, request.decode_on)
        self.counters.prefilled_tokens += length - known
        self.counters.recomputed_tokens += again
        return self._costs.recompute(new, pairs(new, length)), new if cache.decode_on == request.decode_on else length

    def _end(self, context: _Context, new: int) -> None:
        self._timer = None
        seconds = self._costs.handover(new)
        self.counters.handed_tokens += new
        self.counters.handed_bytes += new * self._costs.model.kv_bytes_per_token
        self.counters.handover_seconds += seconds
        self._clock.loop.call_later(seconds, self._answer, context)
        self._begin_next()

    def _answer(self, context: _Context, aborted: bool = False) -> None:
        request = context.request
        if self._open.get(request.id) is context:  # not the same request, asked again after an abort
            del self._open[request.id]
        if not context.done.done():
            context.done.set_result(Completion(request.id, list(request.begun), "aborted" if aborted else "stop"))
