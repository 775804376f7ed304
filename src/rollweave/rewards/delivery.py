"""Delivery: a call of a function that may refuse, hang, die or lose its answer, made until there is one answer.

    a try fails          the next one comes after a backoff that doubles, with a random part, under the same key
    a try is slow        with `hedge_after`, a second one is sent beside it; the first answer counts
    nothing is answered  the circuit breaker opens: calls wait, one probe at a time is sent, an answer closes it
    tries are used up    the call has failed, but only if the function has answered another call since its first try:
                         else it is the function that fails, not the call, and the call waits

It decides on the injected clock and sends nothing itself: a `Send` makes one try. A try that ends in any other way than
by an answer raises `TryFailed`, or `RewardFailed` if no other try can end better. The deadline of the whole call is the
caller's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rollweave.clock import Clock, DeadlineExceeded
from rollweave.config.rewards import CallConfig
from rollweave.errors import RewardFailed
from rollweave.rewards.wire import RewardAnswer
from rollweave.seeds import generator

TryEnd = Literal["answered", "unavailable", "timeout", "dropped", "garbled", "refused", "abandoned"]
"""How a try ended. `unavailable`: the function did not take it (503, no connection); `dropped`: the connection or the
process ended under it; `garbled`: what came is no answer to it; `refused`: no other try can end better; `abandoned`:
another try of the same call was answered first, or the call was given up."""

CALLS_PER_HEDGE = 10
"""Hedges have seats of their own, so that they are sent when all others are taken, but few, so that a function that is
slow because it has too much to do does not get twice as much."""

LONGEST_PATIENCE = 60.0
"""Seconds that a function may ask for with Retry-After."""


class TryFailed(Exception):
    """A try has failed, and another one may succeed."""

    def __init__(self, end: TryEnd, why: str, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.end = end
        self.retry_after = min(retry_after, LONGEST_PATIENCE)


Send = Callable[[], Awaitable[RewardAnswer]]
"""Makes one try. Raises TryFailed or RewardFailed."""

TryOutcome = RewardAnswer | TryFailed | RewardFailed


def _rank(outcome: TryOutcome) -> int:
    """Which of two outcomes counts: an answer, then a failure for good."""
    return (RewardAnswer, RewardFailed, TryFailed).index(type(outcome))


@dataclass(slots=True)
class CallReport:
    """What one call took, for the metrics."""

    seconds: float = 0.0
    tries: Counter[TryEnd] = field(default_factory=Counter)
    hedges: int = 0
    cold_starts: int = 0
    function_seconds: float = 0.0
    """What computing the answer took where the function runs."""
    cost: float = 0.0
    breaker_opened: int = 0
    breaker_seconds: float = 0.0
    """How long the call waited for the breaker."""
    instances: dict[str, float | str] | None = None
    """The last that is known of the instances (`InstancesUsed`)."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"tries": dict(self.tries)}


def backoff_seconds(config: CallConfig, failures: int, seed: int, key: str) -> float:
    """Before the next try of a call after so many failures: between half of the backoff and all of it."""
    longest = min(config.backoff_max, config.backoff * 2.0 ** min(failures - 1, 60))
    return longest * (1.0 - generator(seed, key, failures).random() / 2.0)


class Breaker:
    """The circuit breaker of one function, without a clock: each question comes with the time.

    Failures alone do not open it: many calls that fail in the same moment are one mishap. It opens when nothing was
    answered for a while although it was tried often enough.
    """

    def __init__(self, failures: int, seconds: float, probe_seconds: float) -> None:
        self._most = failures
        self._seconds = seconds
        self._probe_seconds = probe_seconds
        self._failures = 0
        self._first_failure = 0.0
        self._next_probe: float | None = None
        """None: it is closed."""
        self._probing = False
        self._stretch = 0
        """How often it has opened: a probe belongs to the stretch in which it was sent."""
        self.last_answer = float("-inf")

    @property
    def is_open(self) -> bool:
        return self._next_probe is not None

    def opens_in(self, now: float) -> float | None:
        """0: a try may be made; else seconds until it is worth asking again. None: when the probe has ended."""
        if self._next_probe is None:
            return 0.0
        return None if self._probing else max(0.0, self._next_probe - now)

    def begin(self) -> int:
        """A try is made. The stretch that it is a probe of; 0: it is none."""
        self._probing = self.is_open
        return self._stretch if self._probing else 0

    def answered(self, now: float) -> bool:
        """Whether this closes it."""
        closes = self.is_open
        self.last_answer, self._failures, self._next_probe, self._probing = now, 0, None, False
        return closes

    def failed(self, now: float, probe: int) -> bool:
        """Whether this opens it."""
        if self.is_open:
            self.give_up(now, probe)
            return False
        if not self._failures:
            self._first_failure = now
        self._failures += 1
        if self._failures < self._most or now - self._first_failure < self._seconds:
            return False
        self._next_probe = now + self._probe_seconds
        self._stretch += 1
        return True

    def give_up(self, now: float, probe: int) -> None:
        """A try ended without an answer. If it was the probe, another one may be sent."""
        if self.is_open and probe == self._stretch:
            self._probing, self._next_probe = False, now + self._probe_seconds


class Delivery:
    """All calls of one function from one process."""

    def __init__(self, name: str, config: CallConfig, clock: Clock, seed: int, guarded: bool = True) -> None:
        """`guarded`: has a breaker, and a deadline for each try. A pool of processes has neither: there the calls of
        others say nothing about this one, and a try begins when its process is free."""
        self.name = name
        self._config = config
        self._clock = clock
        self._seed = seed
        self._guarded = guarded
        self._seats = asyncio.Semaphore(config.concurrency)
        self._hedge_seats = asyncio.Semaphore(max(1, config.concurrency // CALLS_PER_HEDGE))
        self._breaker = Breaker(config.breaker_failures, config.breaker_seconds, config.probe_seconds)
        self._news = asyncio.Event()
        """Set, and replaced, when the breaker has closed or a probe has ended."""

    async def call(self, key: str, send: Send, report: CallReport) -> RewardAnswer:
        """The answer of the function, exactly one. Raises RewardFailed. The report is kept up to date all along."""
        began, failures = self._clock.now(), 0
        try:
            while True:
                try:
                    return await self._try_or_hedge(send, report)
                except TryFailed as failed:
                    failures += 1
                    if failures >= self._config.tries and self._answers_others(began):
                        raise RewardFailed(
                            f"{self.name} gave no answer in {failures} tries; the last one: {failed}"
                        ) from failed
                    pause = backoff_seconds(self._config, failures, self._seed, key)
                    with self._clock.wait(self.name, f"try {failures + 1} of call {key}: {failed}"):
                        await self._clock.sleep(max(pause, failed.retry_after))
        finally:
            report.seconds = self._clock.now() - began

    def _answers_others(self, since: float) -> bool:
        return not self._guarded or self._breaker.last_answer >= since

    # ----------------------------------------------------------------------------------------------- one round

    async def _try_or_hedge(self, send: Send, report: CallReport) -> RewardAnswer:
        if self._config.hedge_after is None:
            return await self._seated_try(send, report)
        async with asyncio.TaskGroup() as tasks:
            racing = {tasks.create_task(self._outcome(send, report))}
            try:
                outcome = await self._first_outcome(racing, tasks, send, report)
            finally:
                for task in racing:
                    task.cancel()
        if isinstance(outcome, RewardAnswer):
            return outcome
        raise outcome

    async def _first_outcome(
        self, racing: set[asyncio.Task[TryOutcome]], tasks: asyncio.TaskGroup, send: Send, report: CallReport
    ) -> TryOutcome:
        """The first answer of the try and, if it is slow and a hedge is allowed, of another one; else a failure."""
        ended, open_tries = await asyncio.wait(racing, timeout=self._config.hedge_after)
        if not ended and not self._hedge_seats.locked() and not self._breaker.is_open:
            racing.add(tasks.create_task(self._outcome(send, report, hedge=True)))
        open_tries = set(racing)
        while True:
            ended, open_tries = await asyncio.wait(open_tries, return_when=asyncio.FIRST_COMPLETED)
            outcomes = sorted((task.result() for task in ended), key=_rank)
            if not open_tries or not isinstance(outcomes[0], TryFailed):
                return outcomes[0]

    async def _outcome(self, send: Send, report: CallReport, hedge: bool = False) -> TryOutcome:
        """A failure is returned, so that it does not end the other try."""
        try:
            return await self._seated_try(send, report, hedge)
        except (TryFailed, RewardFailed) as failed:
            return failed

    # ------------------------------------------------------------------------------------------------- one try

    async def _seated_try(self, send: Send, report: CallReport, hedge: bool = False) -> RewardAnswer:
        seats = self._hedge_seats if hedge else self._seats
        with self._clock.wait(self.name, "a free seat (call.concurrency)"):
            await seats.acquire()
        try:
            if not self._guarded:
                return await self._try(send, report, hedge)
            await self._pass_breaker(report)
            return await self._guarded_try(send, report, hedge)
        finally:
            seats.release()

    async def _pass_breaker(self, report: CallReport) -> None:
        began = self._clock.now()
        while (wait := self._breaker.opens_in(self._clock.now())) != 0.0:
            with suppress(DeadlineExceeded), self._clock.wait(self.name, "the open circuit breaker", wait):
                await self._news.wait()
        report.breaker_seconds += self._clock.now() - began

    async def _guarded_try(self, send: Send, report: CallReport, hedge: bool) -> RewardAnswer:
        probe, breaker = self._breaker.begin(), self._breaker
        try:
            answer = await self._try(send, report, hedge)
        except TryFailed:
            report.breaker_opened += breaker.failed(self._clock.now(), probe)
            if probe:
                self._tell()
            raise
        except BaseException:  # refused, or given up: neither says that the function works
            if probe:
                breaker.give_up(self._clock.now(), probe)
                self._tell()
            raise
        if breaker.answered(self._clock.now()):
            self._tell()
        return answer

    async def _try(self, send: Send, report: CallReport, hedge: bool) -> RewardAnswer:
        end: TryEnd = "abandoned"
        timeout = self._config.timeout if self._guarded else None
        try:
            with self._clock.wait(self.name, "an answer", timeout):
                answer = await send()
            end = "answered"
        except DeadlineExceeded as late:
            end = "timeout"
            raise TryFailed(end, f"no answer within {timeout:g} s (call.timeout)") from late
        except TryFailed as failed:
            end = failed.end
            raise
        except RewardFailed:
            end = "refused"
            raise
        finally:
            report.tries[end] += 1
            report.hedges += hedge
        return answer

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
