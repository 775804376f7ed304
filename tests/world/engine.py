"""A modelled engine: every token takes a modelled time, every answer a drawn length.

It keeps the engine contract: tokens carry log-probs, transform and the version current when they were drawn;
suspending stops it between tokens; committing changes the version of what comes next, and `in_flight` says what
that does to answers under way. It can die: then every call fails, also those that are open, and what it had sampled of
open answers is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from tests.world.durations import NO_TIME, Duration
from tests.world.witness import Witness

from rollweave.clock import Clock
from rollweave.config.control import InFlight
from rollweave.engines.protocol import Completion, EngineStats, Finish, Request
from rollweave.seeds import generator
from rollweave.simulation.hardware.modelled import ModelledEngine, simulated_fingerprint
from rollweave.trajectory import Span, token_ids
from rollweave.weights.buckets import Fingerprint

VOCABULARY = 256
LOGPROB = -1.0
"""Any finite number would do: nothing is learnt from modelled tokens."""


class Answer:
    """An answer under way.

    Its length and the time of each token are drawn when it begins, so the engine needs one timer for its end, not one
    per token; an interruption (a suspension, an abort, the engine's death) first lets it catch up with the clock.
    """

    def __init__(self, request: Request, token_seconds: Duration, length: Callable[[Random], int]) -> None:
        self.request = request
        self.done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.spans: list[Span] = []
        self._token_seconds = token_seconds
        self._length = length

    def begin(self, now: float, begun: Sequence[Span] = ()) -> None:
        """Draw everything there is to know; also to begin anew, with the same tokens. What another engine has `begun`
        is there at once: it is what would be drawn here."""
        self.began = now
        rng = generator(self.request.seed, "answer")
        wanted = max(1, self._length(rng))
        limit = self.request.sampling.max_tokens
        self._finish: Finish = "stop" if wanted <= limit else "length"
        self.spans = list(begun)
        self.drawn = self._begun = sum(len(span.tokens) for span in begun)
        self._tokens: list[int] = []
        self._due: list[float] = []
        for place in range(min(wanted, limit)):
            seconds = self._token_seconds(rng)
            now += seconds if place >= self.drawn else 0.0
            self._due.append(now)
            self._tokens.append(rng.randrange(VOCABULARY))

    @property
    def drawn_here(self) -> int:
        """Without what another engine had begun."""
        return self.drawn - self._begun

    @property
    def ends_at(self) -> float:
        return self._due[-1]

    def draw_until(self, now: float, version: int, kv_version: int | None) -> None:
        """Append the tokens whose time has come."""
        first = self.drawn
        while self.drawn < len(self._due) and self._due[self.drawn] <= now:
            self.drawn += 1
        if self.drawn > first:
            self._append(self._tokens[first : self.drawn], version, kv_version)

    def delay(self, seconds: float) -> None:
        """What is not drawn yet comes later."""
        self._due[self.drawn :] = [due + seconds for due in self._due[self.drawn :]]

    def completion(self, aborted: bool = False) -> Completion:
        """The text names the tokens, so that an environment can tell one answer from another."""
        tokens = [token for span in self.spans for token in span.tokens.tolist()]
        finish: Finish = "aborted" if aborted else self._finish
        return Completion(self.request.id, self.spans, finish, text=bytes(tokens).hex())

    def _append(self, tokens: list[int], version: int, kv_version: int | None) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.version, last.kv_version) == (version, kv_version):
            tokens = [*self.spans.pop().tokens.tolist(), *tokens]
        logprobs = np.full(len(tokens), LOGPROB, np.float32)
        transform = self.request.sampling.transform
        self.spans.append(Span(token_ids(tokens), logprobs, logprobs, version, transform, kv_version))


@dataclass(frozen=True, slots=True)
class SyncModel:
    """How long the phases of a weight update take."""

    publish: Duration = NO_TIME
    prepare: Duration = NO_TIME
    commit: Duration = NO_TIME


class SimulatedEngine(ModelledEngine):
    def __init__(
        self,
        clock: Clock,
        token_seconds: Duration,
        answer_tokens: Callable[[Random], int],
        *,
        in_flight: InFlight = "recompute",
        sync: SyncModel | None = None,
        number: int = 0,
        witness: Witness | None = None,
    ) -> None:
        super().__init__(clock, number)
        self._sync = sync or SyncModel()
        self._token_seconds = token_seconds
        self._answer_tokens = answer_tokens
        self._in_flight = in_flight
        self._witness = witness or Witness()
        self._stats = EngineStats()
        self._open: dict[str, Answer] = {}
        self._contexts: dict[str, asyncio.Future[Completion]] = {}
        """By request: what is asked of it as a prefill engine."""
        self._caches: dict[str, int] = {}
        """Trajectory -> the version its KV cache began with."""
        self._suspensions = 0
        self._standing_since = 0.0

    async def generate(self, request: Request) -> Completion:
        self._check_alive()
        if request.decode_on is not None:
            return await self._compute_context(request)
        answer = Answer(request, self._token_seconds, self._answer_tokens)
        self._begin(answer)
        try:
            completion = await answer.done
        except asyncio.CancelledError:
            self._catch_up(answer)
            self._witness.abandoned[request.id] += answer.drawn
            raise
        finally:
            self._end(answer)
        self._witness.answer(request, completion)
        return completion

    async def _compute_context(self, request: Request) -> Completion:
        """As a prefill engine does it, in the time of a token."""
        done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._contexts[request.id] = done
        seconds = self._token_seconds(generator(request.seed, "context"))
        completion = Completion(request.id, list(request.begun), "stop")
        timer = asyncio.get_running_loop().call_later(seconds, _end_context, done, completion)
        try:
            return await done
        finally:
            timer.cancel()
            del self._contexts[request.id]

    def abort(self, request_id: str) -> None:
        if request_id in self._contexts:
            _end_context(self._contexts[request_id], Completion(request_id, [], "aborted"))
        answer = self._open.get(request_id)
        if answer is not None and not answer.done.done():
            self._catch_up(answer)
            answer.done.set_result(answer.completion(aborted=True))

    def release(self, trajectory: str) -> None:
        self._caches.pop(trajectory, None)

    async def suspend(self, asleep: bool = False) -> None:
        self._check_alive()
        self._stand_still()
        self._suspensions += 1

    async def resume(self) -> None:
        self._check_alive()
        self._suspensions -= 1
        self._go_on()

    async def prepare(self, version: int) -> Fingerprint:
        fingerprint = await super().prepare(version)
        self._witness.weights.append(("prepared", self.number, version))
        return fingerprint

    def _prepare_seconds(self, version: int) -> float:
        return self._sync.prepare(generator(self.number, "prepare", version))

    def _commit_seconds(self, version: int) -> float:
        return self._sync.commit(generator(self.number, "commit", version))

    async def commit(self, version: int) -> None:
        await self._swap(version)
        self._witness.weights.append(("committed", self.number, version))
        self._stats.version, self._stats.checksum = version, simulated_fingerprint(version).checksum
        if self._in_flight == "restart_turn":
            self._begin_anew()
        if self._in_flight != "keep":
            self._caches = dict.fromkeys(self._caches, version)

    async def stats(self) -> EngineStats:
        self._check_alive()
        for answer in self._open.values():
            self._catch_up(answer)
        busy = self._clock.now() - self._busy_since if self._open else 0.0
        return replace(self._stats, busy_seconds=self._stats.busy_seconds + busy)

    # ----------------------------------------------------------------------------------------------------- death

    def die(self) -> None:
        """The process is gone, and with it every cache and every token that was not yet answered."""
        self._stand_still()
        self._dead = True
        for context in self._contexts.values():
            if not context.done():
                context.set_exception(self._gone())
        for answer in self._open.values():
            if not answer.done.done():
                self._witness.redrawn[answer.request.id] += answer.drawn_here
                answer.done.set_exception(self._gone())

    def _begin_anew(self) -> None:
        for answer in self._open.values():
            if not answer.done.done():
                self._witness.redrawn[answer.request.id] += answer.drawn
                self._stats.restarted_tokens += answer.drawn
                answer.begin(self._clock.now())

    # ------------------------------------------------------------------------------------------------ tokens in time

    @property
    def _standing(self) -> bool:
        return self._suspensions > 0 or self._dead

    def _begin(self, answer: Answer) -> None:
        if not self._open:
            self._busy_since = self._clock.now()
        self._open[answer.request.id] = answer
        self._stats.running = len(self._open)
        self._caches.setdefault(answer.request.trajectory, self._stats.version)
        answer.begin(self._clock.now(), answer.request.begun)
        self._set_timer(answer)

    def _end(self, answer: Answer) -> None:
        if answer.timer is not None:
            answer.timer.cancel()
        del self._open[answer.request.id]
        self._stats.running = len(self._open)
        if not self._open:
            self._stats.busy_seconds += self._clock.now() - self._busy_since

    def _set_timer(self, answer: Answer) -> None:
        if answer.timer is not None:
            answer.timer.cancel()
        answer.timer = asyncio.get_running_loop().call_at(answer.ends_at, self._ring, answer)

    def _ring(self, answer: Answer) -> None:
        if not self._standing and not answer.done.done():
            self._catch_up(answer, answer.ends_at)  # the loop may be a nanosecond early
            answer.done.set_result(answer.completion())

    def _catch_up(self, answer: Answer, now: float | None = None) -> None:
        if self._standing or answer.done.done():
            return
        before = answer.drawn
        version, cache = self._stats.version, self._caches.get(answer.request.trajectory)
        answer.draw_until(now or self._clock.now(), version, cache if cache != version else None)
        self._stats.sampled_tokens += answer.drawn - before
        self._witness.sampled[answer.request.id] += answer.drawn - before

    def _stand_still(self) -> None:
        if not self._standing:
            for answer in self._open.values():
                self._catch_up(answer)
            self._standing_since = self._clock.now()

    def _go_on(self) -> None:
        """Whatever is not drawn yet comes as much later as it stood still."""
        if self._standing:
            return
        for answer in self._open.values():
            if not answer.done.done():
                answer.delay(self._clock.now() - max(self._standing_since, answer.began))
                self._set_timer(answer)


def _end_context(done: asyncio.Future[Completion], completion: Completion) -> None:
    if not done.done():
        done.set_result(completion)
