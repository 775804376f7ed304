"""What every engine owes the control plane: see `Engine` in the protocol of engines.

Engines may be shared by several behaviours (starting one in another process takes seconds), so each behaviour counts
from what it finds: a version above the present one, names of its own, differences of counters. It leaves the engine as
it found it: not suspended, with no open request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

import pytest

from rollweave.clock import Clock
from rollweave.config.control import InFlight
from rollweave.engines.protocol import Completion, Engine, EngineStats, Request, Sampling
from rollweave.trajectory import Transform, token_ids

PROMPT = tuple(range(1, 31))
SAMPLING = Sampling(temperature=0.9, top_p=0.95)


Main = Callable[[Clock], Coroutine[Any, Any, None]]


class EngineUnderTest(Protocol):
    """How one kind of engine is made, and what may be expected of it."""

    in_flight: InFlight
    draws_tokens: bool
    """Whether the seed decides the token ids. A model that only counts tokens draws none."""
    stop_tokens: tuple[int, ...]
    """With these, an answer ends by itself. None if the model behind it knows how long its answers are."""
    long_answer: int
    """Tokens of an answer that is long enough to be caught in the middle; without `stop_tokens` it ends there."""
    tick: float
    """Seconds of its clock in which it draws about a token; 0 if time passes by itself."""

    def run(self, main: Main) -> None:
        """Run to the end on its kind of clock."""
        ...

    def started(self, clock: Clock) -> AbstractAsyncContextManager[Engine]:
        """An engine that runs inside the block. `publish` works there."""
        ...

    async def publish(self, version: int) -> None:
        """Make other weights available to it as this version."""
        ...


_names = count()


@dataclass(slots=True)
class EngineInUse:
    """An engine that runs, and what the behaviours do with it again and again."""

    engine: Engine
    kind: EngineUnderTest
    clock: Clock
    began: EngineStats = field(default_factory=EngineStats)

    async def drawn(self) -> int:
        return (await self.engine.stats()).sampled_tokens - self.began.sampled_tokens

    async def half_way(self, request: Request) -> asyncio.Future[Completion]:
        """Ask, and return once some tokens of the answer are drawn."""
        before = await self.drawn()
        answer = asyncio.ensure_future(self.engine.generate(request))
        while await self.drawn() < before + 5:
            await self.clock.sleep(self.kind.tick)
        assert not answer.done()
        return answer

    async def some_time(self) -> None:
        """Enough for several tokens, if the engine draws any."""
        for _ in range(20):
            await self.clock.sleep(self.kind.tick)
            await self.engine.stats()

    async def new_version(self) -> int:
        """Prepared, not committed."""
        version = (await self.engine.stats()).version + 1
        await self.kind.publish(version)
        await self.engine.prepare(version)
        return version

    async def update(self) -> int:
        """As the weight synchronisation does it."""
        version = await self.new_version()
        await self.engine.suspend()
        await self.engine.commit(version)
        await self.engine.resume()
        return version

    def long(self, **changes: Any) -> Request:
        """A request whose answer has `long_answer` tokens."""
        return request(max_tokens=self.kind.long_answer, **changes)


def request(seed: int = 7, prompt: tuple[int, ...] = PROMPT, **sampling: Any) -> Request:
    name = f"contract-{next(_names)}"
    return Request(f"{name}#0", name, token_ids(prompt), seed, replace(SAMPLING, **sampling))


def tokens(completion: Completion) -> list[int]:
    return [int(token) for span in completion.spans for token in span.tokens]


def versions(completion: Completion) -> list[int | None]:
    return [span.version for span in completion.spans]


# ---------------------------------------------------------------------------------------------------- answers


async def an_answer_is_spans_that_may_be_trained(use: EngineInUse) -> None:
    asked = request(max_tokens=12, temperature=0.8, top_p=0.9, top_k=30)
    answer = await use.engine.generate(asked)
    assert answer.id == asked.id and answer.spans
    for span in answer.spans:
        assert span.problem() is None
        assert span.logprobs is not None and span.raw_logprobs is not None
        assert len(span.tokens) == len(span.logprobs) == len(span.raw_logprobs) > 0
        assert all(float(logprob) <= 0.0 for logprob in span.logprobs)
        assert (span.version, span.kv_version) == (use.began.version, None)
        assert span.transform == Transform(0.8, 0.9, 30)
    assert await use.drawn() == len(tokens(answer))


async def the_limit_of_tokens_ends_an_answer(use: EngineInUse) -> None:
    for limit in (1, 9):
        answer = await use.engine.generate(request(max_tokens=limit))
        assert (answer.finish, len(tokens(answer))) == ("length", limit)


async def an_answer_that_ends_by_itself_says_stop(use: EngineInUse) -> None:
    stops = use.kind.stop_tokens
    answer = await use.engine.generate(request(max_tokens=use.kind.long_answer + 1, stop_tokens=stops))
    drawn = tokens(answer)
    assert answer.finish == "stop" and 0 < len(drawn) <= use.kind.long_answer
    assert [token in stops for token in drawn] == [False] * (len(drawn) - 1) + [bool(stops)]


async def turns_of_a_trajectory_follow_each_other(use: EngineInUse) -> None:
    """And what is released, or unknown, may be released."""
    first = request(max_tokens=8)
    answered = await use.engine.generate(first)
    longer = [*first.tokens, *tokens(answered), *PROMPT]
    second = replace(first, id=f"{first.trajectory}#1", tokens=token_ids(longer))
    again = await use.engine.generate(second)
    assert (again.id, len(tokens(again))) == (second.id, 8)
    for trajectory in (first.trajectory, first.trajectory, "unknown"):
        use.engine.release(trajectory)


# ------------------------------------------------------------------------------------------------------ seeds


async def a_seed_decides_what_is_drawn(use: EngineInUse) -> None:
    one, same, other = [tokens(await use.engine.generate(request(seed, max_tokens=20))) for seed in (3, 3, 4)]
    assert one == same
    assert (one != other) == use.kind.draws_tokens


async def concurrent_requests_do_not_change_each_others_draws(use: EngineInUse) -> None:
    asked = [(seed, PROMPT[: 4 + 3 * seed]) for seed in range(6)]
    alone = [tokens(await use.engine.generate(request(*each, max_tokens=15))) for each in asked]
    together = await asyncio.gather(*(use.engine.generate(request(*each, max_tokens=15)) for each in asked))
    assert [tokens(answer) for answer in together] == alone


# ------------------------------------------------------------------------------------------------------ abort


async def an_unknown_request_may_be_aborted(use: EngineInUse) -> None:
    ended = request(max_tokens=4)
    await use.engine.generate(ended)
    for id in ("unknown", ended.id):
        use.engine.abort(id)
    assert (await use.engine.generate(request(max_tokens=4))).finish == "length"


async def an_aborted_request_returns_what_it_has(use: EngineInUse) -> None:
    whole = tokens(await use.engine.generate(use.long()))
    before = await use.drawn()
    asked = use.long()
    answer = await use.half_way(asked)
    use.engine.abort(asked.id)
    part = await answer
    assert part.finish == "aborted" and all(span.problem() is None for span in part.spans)
    assert 0 < len(tokens(part)) < len(whole)
    assert tokens(part) == whole[: len(tokens(part))]
    assert await use.drawn() - before == len(tokens(part)), "what is returned is what was counted"


async def a_request_that_waits_may_be_aborted(use: EngineInUse) -> None:
    await use.engine.suspend()
    asked = use.long()
    answer = asyncio.ensure_future(use.engine.generate(asked))
    await use.some_time()
    use.engine.abort(asked.id)
    part = await answer
    assert (part.finish, tokens(part)) == ("aborted", [])
    await use.engine.resume()


async def a_moved_request_goes_on_where_it_was(use: EngineInUse) -> None:
    """Whatever engine goes on with it draws only the rest, and the answer is the one it would have been."""
    whole = tokens(await use.engine.generate(use.long()))
    asked = use.long()
    answer = await use.half_way(asked)
    use.engine.abort(asked.id)
    begun = await answer
    before = await use.drawn()
    moved = await use.engine.generate(replace(use.long(), begun=tuple(begun.spans)))
    assert tokens(moved) == whole
    assert await use.drawn() - before == len(whole) - len(tokens(begun))


# ------------------------------------------------------------------------------------------- suspend and resume


async def a_suspended_engine_draws_nothing_until_all_have_resumed_it(use: EngineInUse) -> None:
    answer = await use.half_way(use.long())
    await use.engine.suspend()
    await use.engine.suspend()
    drawn = await use.drawn()
    later = asyncio.ensure_future(use.engine.generate(request(max_tokens=3)))
    await use.some_time()
    assert await use.drawn() == drawn
    await use.engine.resume()
    await use.some_time()
    assert await use.drawn() == drawn and not answer.done() and not later.done()
    await use.engine.resume()
    assert len(tokens(await answer)) == use.kind.long_answer
    assert len(tokens(await later)) == 3


async def gauges_say_what_is_open(use: EngineInUse) -> None:
    async def open_requests() -> int:
        stats = await use.engine.stats()
        return stats.running + stats.waiting

    assert await open_requests() == 0
    first, second = await use.half_way(use.long()), asyncio.ensure_future(use.engine.generate(use.long()))
    await use.some_time()
    assert await open_requests() == 2
    for answer in (first, second):
        await answer
    assert await open_requests() == 0
    ended = await use.engine.stats()
    assert ended.busy_seconds > use.began.busy_seconds
    assert ended.sampled_tokens - use.began.sampled_tokens == 2 * use.kind.long_answer


# -------------------------------------------------------------------------------------------------- new weights


async def the_time_of_contexts_is_part_of_the_busy_time(use: EngineInUse) -> None:
    await asyncio.gather(*(use.engine.generate(request(seed, PROMPT * 4, max_tokens=9)) for seed in range(3)))
    stats, began = await use.engine.stats(), use.began
    contexts = stats.prefill_seconds - began.prefill_seconds
    assert 0.0 <= contexts < stats.busy_seconds - began.busy_seconds
    assert (contexts > 0.0) == (stats.computed_tokens > began.computed_tokens)


async def only_a_prepared_version_can_be_committed(use: EngineInUse) -> None:
    version = use.began.version
    with pytest.raises(ValueError, match=f"version {version + 3} is not prepared"):
        await use.engine.commit(version + 3)
    await use.kind.publish(version + 5)
    await use.engine.prepare(version + 5)
    with pytest.raises(ValueError, match=f"version {version + 3} is not prepared"):
        await use.engine.commit(version + 3)
    assert (await use.engine.stats()).version == version
    await use.engine.commit(version + 5)
    assert (await use.engine.stats()).version == version + 5, "a version may be left out"
    with pytest.raises(ValueError, match=f"version {version + 5} is not prepared"):
        await use.engine.commit(version + 5)


async def a_committed_version_is_the_one_that_was_prepared(use: EngineInUse) -> None:
    version = use.began.version + 1
    await use.kind.publish(version)
    prepared = await use.engine.prepare(version)
    before = await use.engine.stats()
    assert (before.version, before.checksum) == (use.began.version, use.began.checksum)
    assert (prepared.version, prepared.checksum != before.checksum) == (version, True)
    await use.engine.commit(version)
    after = await use.engine.stats()
    assert (after.version, after.checksum) == (version, prepared.checksum)
    assert versions(await use.engine.generate(request(max_tokens=5))) == [version]


async def preparing_does_not_disturb_an_answer(use: EngineInUse) -> None:
    whole = tokens(await use.engine.generate(use.long()))
    answer = await use.half_way(use.long())
    await use.new_version()
    undisturbed = await answer
    assert (versions(undisturbed), tokens(undisturbed)) == ([use.began.version], whole)


async def an_answer_says_where_the_version_changed(use: EngineInUse) -> None:
    """By what `in_flight` does to it: its context is computed again, its cache is kept, or its turn begins again."""
    answer = await use.half_way(use.long())
    old, new = use.began.version, await use.update()
    completion = await answer
    restarted = (await use.engine.stats()).restarted_tokens - use.began.restarted_tokens
    assert len(tokens(completion)) == use.kind.long_answer
    assert all(span.problem() is None and len(span.tokens) > 0 for span in completion.spans)
    assert await use.drawn() == use.kind.long_answer + restarted
    changes = [(span.version, span.kv_version) for span in completion.spans]
    match use.kind.in_flight:
        case "recompute":
            assert (changes, restarted) == ([(old, None), (new, None)], 0)
        case "keep":
            assert (changes, restarted) == ([(old, None), (new, old)], 0)
        case "restart_turn":
            assert (changes, restarted > 0) == ([(new, None)], True)


async def the_next_turn_is_drawn_by_the_new_version(use: EngineInUse) -> None:
    first = request(max_tokens=6)
    answered = await use.engine.generate(first)
    old, new = use.began.version, await use.update()
    longer = [*first.tokens, *tokens(answered), *PROMPT]
    second = await use.engine.generate(replace(first, id=f"{first.trajectory}#1", tokens=token_ids(longer)))
    kv_version = old if use.kind.in_flight == "keep" else None
    assert [(span.version, span.kv_version) for span in second.spans] == [(new, kv_version)]


Behaviour = Callable[[EngineInUse], Awaitable[None]]

BEHAVIOURS: tuple[Behaviour, ...] = (
    an_answer_is_spans_that_may_be_trained,
    the_limit_of_tokens_ends_an_answer,
    an_answer_that_ends_by_itself_says_stop,
    turns_of_a_trajectory_follow_each_other,
    a_seed_decides_what_is_drawn,
    concurrent_requests_do_not_change_each_others_draws,
    an_unknown_request_may_be_aborted,
    an_aborted_request_returns_what_it_has,
    a_request_that_waits_may_be_aborted,
    a_moved_request_goes_on_where_it_was,
    a_suspended_engine_draws_nothing_until_all_have_resumed_it,
    gauges_say_what_is_open,
    the_time_of_contexts_is_part_of_the_busy_time,
    only_a_prepared_version_can_be_committed,
    a_committed_version_is_the_one_that_was_prepared,
    preparing_does_not_disturb_an_answer,
)
UPDATES: tuple[Behaviour, ...] = (an_answer_says_where_the_version_changed, the_next_turn_is_drawn_by_the_new_version)
"""Those that `in_flight` decides: to be run for each of its values."""


def check_engine(behaviour: Behaviour, kind: EngineUnderTest) -> None:
    async def main(clock: Clock) -> None:
        async with kind.started(clock) as engine:
            await behaviour(EngineInUse(engine, kind, clock, await engine.stats()))

    kind.run(main)


# ------------------------------------------------------------------------------------- prefill and decode engines


class PairUnderTest(Protocol):
    """How a prefill engine and a decode engine of one kind are made."""

    draws_tokens: bool
    long_answer: int
    tick: float

    def run(self, main: Main) -> None: ...

    def started(self, clock: Clock) -> AbstractAsyncContextManager[tuple[Engine, Engine, object]]:
        """The prefill engine, the decode engine, and the prefill engine's address."""
        ...


@dataclass(slots=True)
class PairInUse:
    kind: PairUnderTest
    clock: Clock
    prefill: Engine
    decode: Engine
    address: object
    """Of the prefill engine."""

    async def answered(self, asked: Request) -> Completion:
        """As the proxy does it."""
        context = await self.prefill.generate(replace(asked, decode_on="decode"))
        assert (context.id, tokens(context), context.finish) == (asked.id, [], "stop")
        return await self.decode.generate(replace(asked, kv_from=self.address))


async def an_answer_that_was_handed_over_is_the_one_of_one_engine(use: PairInUse) -> None:
    whole, answer = await use.decode.generate(request(max_tokens=12)), await use.answered(request(max_tokens=12))
    assert tokens(answer) == tokens(whole)
    for one, other in zip(answer.spans, whole.spans, strict=True):
        assert (one.version, one.kv_version) == (other.version, other.kv_version)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


async def a_later_turn_hands_over_only_what_is_new(use: PairInUse) -> None:
    before, computed = await use.decode.stats(), await use.prefill.stats()
    first = request(max_tokens=8)
    answered = await use.answered(first)
    longer = token_ids([*first.tokens, *tokens(answered), *PROMPT])
    again = await use.answered(replace(first, id=f"{first.trajectory}#1", tokens=longer))
    assert len(tokens(again)) == 8
    after, prefill = await use.decode.stats(), await use.prefill.stats()
    assert prefill.prefilled_tokens - computed.prefilled_tokens == len(longer)
    assert prefill.sampled_tokens == computed.sampled_tokens
    assert after.prefilled_tokens - before.prefilled_tokens <= 2, "but for the tokens from which it samples"
    handed = after.handed_tokens - before.handed_tokens + prefill.handed_tokens - computed.handed_tokens
    assert 2 * len(PROMPT) - 2 <= handed <= len(longer)
    for engine in (use.prefill, use.decode):
        engine.release(first.trajectory)


async def a_context_may_be_given_up_while_it_is_computed(use: PairInUse) -> None:
    asked = request(max_tokens=8)
    await use.prefill.suspend()
    context = asyncio.ensure_future(use.prefill.generate(replace(asked, decode_on="decode")))
    await use.clock.sleep(use.kind.tick)
    use.prefill.abort(asked.id)
    await use.prefill.resume()
    assert tokens(await context) == []
    assert len(tokens(await use.answered(asked))) == 8, "it may be asked for again"


Handover = Callable[[PairInUse], Awaitable[None]]

HANDOVERS: tuple[Handover, ...] = (
    an_answer_that_was_handed_over_is_the_one_of_one_engine,
    a_later_turn_hands_over_only_what_is_new,
    a_context_may_be_given_up_while_it_is_computed,
)


def check_pair(behaviour: Handover, kind: PairUnderTest) -> None:
    async def main(clock: Clock) -> None:
        async with kind.started(clock) as (prefill, decode, address):
            await behaviour(PairInUse(kind, clock, prefill, decode, address))

    kind.run(main)
