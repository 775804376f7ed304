"""Delivery on the virtual clock: whatever a function does to its calls, each gets one answer, its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.clock import Clock, run_virtual
from rollweave.config.rewards import CallConfig
from rollweave.errors import RewardFailed
from rollweave.rewards.delivery import Breaker, CallReport, Delivery, TryFailed, backoff_seconds
from rollweave.rewards.scorer import RewardResult
from rollweave.rewards.wire import RewardAnswer

FAILURES = ("unavailable", "dropped", "garbled", "hang")


@dataclass
class Service:
    """A function on the clock. `plan` says of the n-th try of a key how long it takes and how it ends: `answered`, a
    failure, `hang`, or `wrong`, an answer that is not the one its content demands."""

    clock: Clock
    plan: Callable[[str, int], tuple[float, str]]
    tries: Counter[str] = field(default_factory=Counter)
    busy: int = 0
    most: int = 0

    async def send(self, key: str) -> RewardAnswer:
        self.tries[key] += 1
        seconds, end = self.plan(key, self.tries[key])
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await self.clock.sleep(1e9 if end == "hang" else seconds)
        finally:
            self.busy -= 1
        if end in ("answered", "wrong"):
            return RewardAnswer(RewardResult(float(key) + (end == "wrong")))
        if end == "refused":
            raise RewardFailed("no")
        raise TryFailed(end, end)  # type: ignore[arg-type]


@dataclass
class Delivered:
    values: dict[str, float | str]
    reports: dict[str, CallReport]
    seconds: float
    service: Service

    @property
    def tries(self) -> Counter[str]:
        return sum((report.tries for report in self.reports.values()), Counter())


def deliver(
    config: CallConfig, keys: list[str], plan: Callable[[Clock], Callable[[str, int], tuple[float, str]]]
) -> Delivered:
    async def main(clock: Clock) -> Delivered:
        service = Service(clock, plan(clock))
        delivery = Delivery("reward mine", config, clock, seed=7)
        done = Delivered({}, {key: CallReport() for key in keys}, 0.0, service)

        async def call(key: str) -> None:
            try:
                answer = await delivery.call(key, lambda: service.send(key), done.reports[key])
                assert answer.result is not None and key not in done.values
                done.values[key] = answer.result.value
            except RewardFailed as failed:
                done.values[key] = str(failed)

        async with asyncio.TaskGroup() as tasks:
            for key in keys:
                tasks.create_task(call(key))
        done.seconds = clock.now()
        return done

    return run_virtual(main)


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def add_up(done: Delivered) -> None:
    """Every try of the service is in one report, under the end that it had."""
    for key, report in done.reports.items():
        assert report.tries.total() == done.service.tries[key]
    ends = Counter({end: count for end, count in done.tries.items() if end not in ("timeout", "abandoned")})
    assert ends.total() <= sum(done.service.tries.values())
    assert done.service.busy == 0


# -------------------------------------------------------------------------------------------------------- properties


@st.composite
def mishaps(draw: st.DrawFn) -> dict[str, list[tuple[float, str]]]:
    """By key: what its first tries meet; later ones are answered."""
    ends = st.sampled_from([*FAILURES, "answered"])
    seconds = st.sampled_from([0.0, 0.01, 0.1, 1.0, 4.0])
    return {key: draw(st.lists(st.tuples(seconds, ends), max_size=3)) for key in numbers(draw(st.integers(1, 12)))}


configs = st.builds(
    CallConfig,
    timeout=st.just(5.0),
    tries=st.just(4),
    hedge_after=st.sampled_from([None, None, 0.05, 0.5, 3.0]),
    concurrency=st.sampled_from([1, 2, 5, 100]),
    breaker_failures=st.integers(1, 5),
    breaker_seconds=st.sampled_from([0.1, 1.0, 5.0]),
)


@settings(max_examples=300, deadline=None)
@given(mishaps(), configs)
def test_every_call_gets_its_own_answer_once(script: dict[str, list[tuple[float, str]]], config: CallConfig) -> None:
    def plan(clock: Clock) -> Callable[[str, int], tuple[float, str]]:
        return lambda key, nth: script[key][nth - 1] if nth <= len(script[key]) else (0.1, "answered")

    done = deliver(config, list(script), plan)
    assert done.values == {key: float(key) for key in script}
    hedges = 0 if config.hedge_after is None else max(1, config.concurrency // 10)
    assert done.service.most <= config.concurrency + hedges
    add_up(done)
    again = deliver(config, list(script), plan)
    assert (again.seconds, again.tries) == (done.seconds, done.tries), "the seed fixes every pause"


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 60), st.integers(0, 5), st.text("abc", max_size=3))
def test_a_backoff_doubles_and_takes_off_at_most_half(failures: int, seed: int, key: str) -> None:
    config = CallConfig(backoff=0.5, backoff_max=10.0)
    seconds = backoff_seconds(config, failures, seed, key)
    longest = min(10.0, 0.5 * 2.0 ** (failures - 1))
    assert longest / 2 <= seconds <= longest
    assert seconds == backoff_seconds(config, failures, seed, key)


def test_calls_that_failed_together_do_not_come_back_together() -> None:
    assert len({backoff_seconds(CallConfig(), 1, 7, key) for key in numbers(50)}) == 50


moves = st.sampled_from(["try", "try", "try", "answer", "fail", "fail", "give up", "time", "time"])
steps = st.lists(st.tuples(moves, st.integers(0, 20)), min_size=20, max_size=60)


@settings(max_examples=500, deadline=None)
@given(steps, st.integers(1, 4), st.sampled_from([0.0, 1.0, 3.0]))
def test_a_breaker_opens_for_a_function_that_does_not_answer_and_sends_one_probe_at_a_time(
    script: list[tuple[str, int]], most: int, seconds: float
) -> None:
    breaker, now, under_way = Breaker(most, seconds, 2.0), 0.0, list[int]()
    failures: list[float] = []
    """Since the last answer."""
    for what, number in script:
        if what == "time":
            now += number / 4
        elif what == "try":
            wait = breaker.opens_in(now)
            assert (wait == 0.0) or breaker.is_open, "a closed breaker holds up no call"
            if wait == 0.0:
                probe = breaker.begin()
                assert bool(probe) == breaker.is_open
                assert not probe or probe not in under_way, "another probe is under way"
                under_way.append(probe)
        elif under_way:
            probe = under_way.pop(number % len(under_way))
            if what == "answer":
                breaker.answered(now)
                failures = []
                assert not breaker.is_open and breaker.last_answer == now
            elif what == "fail":
                was_open = breaker.is_open
                failures += [] if was_open else [now]
                opened = breaker.failed(now, probe)
                assert opened == (not was_open and len(failures) >= most and now - failures[0] >= seconds)
            else:
                breaker.give_up(now, probe)


# ---------------------------------------------------------------------------------------------------------- scenes


def outage(clock: Clock) -> Callable[[str, int], tuple[float, str]]:
    """Nothing but refusals for 10 s."""
    return lambda key, nth: (0.01, "unavailable" if clock.now() < 10.0 else "answered")


def test_an_outage_loses_no_call_and_is_not_made_worse() -> None:
    done = deliver(CallConfig(concurrency=64), numbers(300), outage)
    assert done.values == {key: float(key) for key in numbers(300)}
    opened = sum(report.breaker_opened for report in done.reports.values())
    assert opened == 1, "it opens once and closes by itself"
    refused = done.tries["unavailable"]
    assert refused < 300 * 4, "while it is open only probes are sent"
    assert 10.0 < done.seconds < 10.0 + 1.0 + 2 * CallConfig().backoff_max
    assert sum(report.breaker_seconds for report in done.reports.values()) > 0
    add_up(done)


def test_a_call_that_always_fails_gives_up_while_others_are_answered() -> None:
    plan = lambda clock: lambda key, nth: (0.1, "dropped" if key == "0" else "answered")  # noqa: E731
    done = deliver(CallConfig(tries=3), numbers(5), plan)
    assert done.values.pop("0") == "reward mine gave no answer in 3 tries; the last one: dropped"
    assert done.values == {key: float(key) for key in numbers(5)[1:]}
    assert done.service.tries["0"] == 3


def test_what_no_other_try_can_cure_is_not_tried_again() -> None:
    done = deliver(CallConfig(), ["0"], lambda clock: lambda key, nth: (0.1, "refused"))
    assert (done.values["0"], done.service.tries["0"]) == ("no", 1)


@pytest.mark.parametrize(("first", "seconds"), [("hang", 0.5 + 0.1), ("wrong", 0.5 + 0.1)])
def test_a_hedge_answers_for_a_straggler_and_the_other_answer_is_ignored(first: str, seconds: float) -> None:
    """`wrong`: the first try answers too, later, and something else."""
    plan = lambda clock: lambda key, nth: (2.0, first) if nth == 1 else (0.1, "answered")  # noqa: E731
    done = deliver(CallConfig(hedge_after=0.5), ["3"], plan)
    assert done.values == {"3": 3.0}
    assert done.seconds == pytest.approx(seconds)
    report = done.reports["3"]
    assert (report.hedges, report.tries) == (1, Counter(answered=1, abandoned=1))


def test_a_tenth_as_many_hedges_as_calls_are_sent_at_once() -> None:
    plan = lambda clock: lambda key, nth: (1.0, "answered")  # noqa: E731
    done = deliver(CallConfig(hedge_after=0.1, concurrency=20), numbers(40), plan)
    assert done.service.most == 22


def test_a_call_that_is_given_up_leaves_its_seat_and_its_probe() -> None:
    async def main(clock: Clock) -> None:
        config = CallConfig(concurrency=1, breaker_failures=1, breaker_seconds=0.001, tries=1, timeout=100.0)
        ends = iter(["dropped", "dropped", "hang", "answered"])
        service = Service(clock, lambda key, nth: (0.01, next(ends)))
        delivery = Delivery("reward mine", config, clock, seed=0)
        report = CallReport()
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(delivery.call("1", lambda: service.send("1"), report))
            await clock.sleep(20.0)  # the breaker is open, and the probe hangs
            assert report.breaker_opened == 1 and service.busy == 1
            lost.cancel()
        answer = await delivery.call("2", lambda: service.send("2"), CallReport())
        assert answer.result == RewardResult(2.0)

    run_virtual(main)


def test_a_function_that_asks_for_patience_gets_it() -> None:
    async def main(clock: Clock) -> float:
        async def send() -> RewardAnswer:
            if clock.now() < 5.0:
                raise TryFailed("unavailable", "busy", retry_after=5.0)
            return RewardAnswer(RewardResult(1.0))

        await Delivery("reward mine", CallConfig(), clock, seed=0).call("1", send, CallReport())
        return clock.now()

    assert run_virtual(main) == 5.0
