"""A modelled engine: every token takes a modelled time, every answer a drawn length.

It keeps the engine contract: tokens carry log-probs, transform and the version current when they were drawn;
suspending stops it between tokens; committing changes the version of what comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from rollweave.clock import Clock
from rollweave.engines.protocol import Completion, EngineStats, Finish, Request
from rollweave.seeds import generator
from rollweave.simulation.durations import Duration
from rollweave.trajectory import Span

VOCABULARY = 256
LOGPROB = -1.0
"""Any finite number would do: nothing is learnt from modelled tokens."""


class SimulatedEngine:
    def __init__(self, clock: Clock, token_seconds: Duration, answer_tokens: Callable[[Random], int]) -> None:
        self._clock = clock
        self._token_seconds = token_seconds
        self._answer_tokens = answer_tokens
        self._running = asyncio.Event()
        self._running.set()
        self._aborted: set[str] = set()
        self._stats = EngineStats()
        self._active: set[str] = set()

    async def generate(self, request: Request) -> Completion:
        rng = generator(request.seed, "answer")
        wanted = max(1, self._answer_tokens(rng))
        spans: list[Span] = []
        finish: Finish = "stop" if wanted <= request.sampling.max_tokens else "length"
        self._begin(request)
        try:
            for _ in range(min(wanted, request.sampling.max_tokens)):
                await self._running.wait()
                if request.id in self._aborted:
                    finish = "aborted"
                    break
                await self._clock.sleep(self._token_seconds(rng))
                await self._running.wait()  # a token whose step met a suspension is drawn under the new weights
                self._append(spans, rng.randrange(VOCABULARY), request)
        finally:
            self._end(request)
        return Completion(request.id, spans, finish, text=f"{len(spans)} spans")

    def abort(self, request_id: str) -> None:
        if request_id in self._active:
            self._aborted.add(request_id)

    def release(self, trajectory: str) -> None:
        pass

    async def suspend(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def prepare(self, version: int) -> str:
        return simulated_checksum(version)

    async def commit(self, version: int) -> None:
        self._stats.version = version

    async def stats(self) -> EngineStats:
        return self._stats

    async def close(self) -> None:
        pass

    def _append(self, spans: list[Span], token: int, request: Request) -> None:
        if not spans or spans[-1].version != self._stats.version:
            spans.append(Span([], [], [], self._stats.version, request.sampling.transform))
        span = spans[-1]
        assert span.logprobs is not None and span.raw_logprobs is not None
        span.tokens.append(token)
        span.logprobs.append(LOGPROB)
        span.raw_logprobs.append(LOGPROB)
        self._stats.sampled_tokens += 1

    def _begin(self, request: Request) -> None:
        if not self._active:
            self._busy_since = self._clock.now()
        self._active.add(request.id)
        self._stats.running = len(self._active)

    def _end(self, request: Request) -> None:
        self._active.discard(request.id)
        self._aborted.discard(request.id)
        self._stats.running = len(self._active)
        if not self._active:
            self._stats.busy_seconds += self._clock.now() - self._busy_since


def simulated_checksum(version: int) -> str:
    return f"simulated-{version}"
