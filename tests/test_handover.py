"""Prefill and decode engines of torch: the KV cache is handed over for real, and answers stay those of one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollweave.clock import Clock, run_virtual, run_wall
from rollweave.config.control import InFlight
from rollweave.engines.loop import HANDOVER_SECONDS, EngineLoop
from rollweave.engines.protocol import Completion, KvAsk, KvRows, Request
from rollweave.engines.torch.engine import TorchEngine
from rollweave.errors import EngineGone
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.fleet.router import RouteAsk, choose
from rollweave.trajectory import token_ids
from rollweave.weights.store import MemoryStore
from test_pipelines_virtual import many
from torch_engine_reference import (
    assert_raw_logprobs,
    engine_of,
    random_model,
    random_prompt,
    request,
    run,
    tokens_of,
    update,
)

MODELS = [random_model("qwen3", seed=seed) for seed in range(4)]
"""By version."""
PROMPT = random_prompt(3, 40)
SAMPLED = {"temperature": 0.9, "top_p": 0.95}
TOKEN_BYTES = 2 * 2 * 2 * 32 * 4
"""Of keys and values: layers x (keys, values) x heads x size x float32."""


def handed_over(prefill: TorchEngine, decode: TorchEngine, asked: Request, *, meanwhile: Any = None) -> Completion:
    """One request through both engines, without a loop."""
    (context,) = run(prefill, [replace(asked, decode_on="decode")]).values()
    assert (context.id, tokens_of(context)) == (asked.id, tokens_of(Completion("", list(asked.begun), "stop")))
    asked = replace(asked, kv_from="prefill")
    decode.add(asked)
    assert not decode.has_work, "it waits for its context"
    ask = decode.lacks(asked)
    rows = prefill.kv_rows(ask) if ask is not None else None
    if meanwhile is not None:
        meanwhile()
    decode.deliver(asked, rows)
    (answer,) = run(decode).values()
    return answer


def conversation(seed: int, turns: int) -> Iterator[tuple[int, list[int]]]:
    """What the environment says in each turn."""
    for turn in range(turns):
        yield turn, random_prompt(100 * seed + turn, 40 if turn == 0 else 7 + 5 * turn)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama", "llama3-rope"])
@pytest.mark.parametrize("prefill_tokens", [64, 16])
def test_an_answer_that_was_handed_over_is_the_one_of_one_engine(kind: str, prefill_tokens: int) -> None:
    model = random_model(kind)
    one, prefill, decode = (engine_of(model, prefill_tokens=prefill_tokens) for _ in range(3))
    context: list[int] = []
    for turn, said in conversation(1, 4):
        context += said
        asked = request("a", context, turn=turn, seed=turn, max_tokens=9, **SAMPLED)
        (whole,) = run(one, [asked]).values()
        answer = handed_over(prefill, decode, asked)
        assert tokens_of(answer) == tokens_of(whole)
        (mine,), (reference,) = answer.spans, whole.spans
        for name in ("logprobs", "raw_logprobs"):
            np.testing.assert_allclose(getattr(mine, name), getattr(reference, name), atol=1e-5, rtol=0)
        assert (mine.version, mine.kv_version) == (0, None)
        context += tokens_of(answer)
    assert (prefill.stats().sampled_tokens, prefill.stats().recomputed_tokens) == (0, 0)
    assert prefill.stats().prefilled_tokens == len(context) - 9, "each turn only what is new"
    assert decode.stats().prefilled_tokens == 4, "the last token of each context, from which it samples"
    assert decode.stats().recomputed_tokens == 0


def test_only_what_the_decode_engine_lacks_travels() -> None:
    prefill, decode = engine_of(MODELS[0]), engine_of(MODELS[0])
    first = handed_over(prefill, decode, request("a", PROMPT, max_tokens=9))
    assert (decode.stats().handed_tokens, decode.stats().handed_bytes) == (39, 39 * TOKEN_BYTES)
    context = PROMPT + tokens_of(first) + random_prompt(5, 12)
    handed_over(prefill, decode, request("a", context, turn=1, max_tokens=9))
    # It has computed all of its answer but the last token, and computes the last of the new ones itself.
    assert decode.stats().handed_tokens == 39 + 1 + 12 - 1
    other = engine_of(MODELS[0])
    handed_over(prefill, other, request("a", context, turn=2, max_tokens=9))
    assert other.stats().handed_tokens == len(context) - 1, "another engine has nothing"


def test_a_moved_request_takes_what_was_begun_along() -> None:
    asked = request("a", PROMPT, seed=5, max_tokens=12, **SAMPLED)
    whole = run(engine_of(MODELS[0]), [asked])["a"]
    prefill, one, other = (engine_of(MODELS[0]) for _ in range(3))
    one.add(asked)
    for _ in range(5):
        one.step()
    begun = one.abort(asked.id)
    assert begun is not None
    rest = handed_over(prefill, other, replace(asked, begun=tuple(begun.spans)))
    assert tokens_of(rest) == tokens_of(whole) and other.stats().sampled_tokens == 7


def test_a_context_that_was_evicted_or_released_or_is_another_is_computed_by_the_decode_engine() -> None:
    asked = request("a", PROMPT, max_tokens=5)
    whole = tokens_of(run(engine_of(MODELS[0]), [asked])["a"])
    prefill = engine_of(MODELS[0], slots=1)
    ask = KvAsk("a", asked.tokens, 0)
    assert prefill.kv_rows(ask) is None
    run(prefill, [replace(asked, decode_on="x")])
    part = prefill.kv_rows(KvAsk("a", token_ids([*PROMPT[:10], 1, 2, 3]), 4))
    assert part is not None and (part.start, part.end) == (4, 10), "as far as the tokens are the same"
    run(prefill, [request("b", PROMPT, max_tokens=1)])  # takes the only slot
    assert prefill.kv_rows(ask) is None
    run(prefill, [replace(asked, decode_on="x")])
    prefill.release("a")
    assert prefill.kv_rows(ask) is None
    decode = engine_of(MODELS[0])
    asked = replace(asked, kv_from="prefill")
    decode.add(asked)
    decode.deliver(asked, None)
    assert tokens_of(run(decode)["a"]) == whole


# ---------------------------------------------------------------------------------------------------- new weights


@pytest.mark.parametrize("first", ["prefill", "decode", "both"])
@pytest.mark.parametrize("in_flight", ["recompute", "keep", "restart_turn"])
def test_a_version_that_changes_between_prefill_and_decode_is_noticed(in_flight: InFlight, first: str) -> None:
    """One of the engines, or both, have the next version when the context arrives. Its log-probs say which weights
    computed the context; its spans have to say the same."""
    prefill, decode = (engine_of(MODELS[0], in_flight=in_flight) for _ in range(2))
    if first == "prefill":
        update(prefill, 1, MODELS[1])

    def meanwhile() -> None:
        for engine, name in ((prefill, "prefill"), (decode, "decode")):
            if first in (name, "both") and engine.stats().version == 0:
                update(engine, 1, MODELS[1])

    (span,) = handed_over(prefill, decode, request("a", PROMPT, max_tokens=6), meanwhile=meanwhile).spans
    version = 0 if first == "prefill" else 1
    assert span.version == version
    if in_flight == "keep" and first != "prefill":
        assert span.kv_version == 0
        with pytest.raises(AssertionError):
            assert_raw_logprobs(MODELS[1], PROMPT, span)
        assert decode.stats().recomputed_tokens == 0
    else:
        assert span.kv_version is None
        assert_raw_logprobs(MODELS[version], PROMPT, span)
        assert decode.stats().recomputed_tokens == 39, "what was handed over was of no use"


def test_a_context_of_the_new_version_is_taken_when_the_decode_engine_has_it_too() -> None:
    prefill, decode = engine_of(MODELS[0]), engine_of(MODELS[0])
    update(prefill, 1, MODELS[1])
    asked = request("a", PROMPT, max_tokens=6)
    (span,) = handed_over(prefill, decode, asked, meanwhile=partial(update, decode, 1, MODELS[1])).spans
    assert (span.version, span.kv_version, decode.stats().recomputed_tokens) == (1, None, 0)
    assert_raw_logprobs(MODELS[1], PROMPT, span)


def test_old_rows_of_the_decode_engine_are_not_continued_with_new_ones() -> None:
    """The second turn's context was computed under version 1, the decode engine's part of it under version 0."""
    prefill, decode = engine_of(MODELS[0]), engine_of(MODELS[0])
    first = handed_over(prefill, decode, request("a", PROMPT, max_tokens=5))
    update(prefill, 1, MODELS[1])
    context = PROMPT + tokens_of(first) + random_prompt(5, 12)
    second = request("a", context, turn=1, max_tokens=5)
    (span,) = handed_over(prefill, decode, second, meanwhile=partial(update, decode, 1, MODELS[1])).spans
    assert (span.version, span.kv_version) == (1, None)
    assert_raw_logprobs(MODELS[1], context, span)


@pytest.mark.parametrize("in_flight", ["recompute", "keep", "restart_turn"])
def test_new_weights_in_the_middle_of_a_context(in_flight: InFlight) -> None:
    prefill = engine_of(MODELS[0], in_flight=in_flight, prefill_tokens=16)
    asked = request("a", PROMPT, max_tokens=5)
    prefill.add(replace(asked, decode_on="x"))
    prefill.step()
    update(prefill, 1, MODELS[1])
    run(prefill)
    rows = prefill.kv_rows(KvAsk("a", asked.tokens, 0))
    assert rows is not None and rows.version == (0 if in_flight == "keep" else 1)
    assert prefill.stats().restarted_tokens == 0, "it samples nothing that could be thrown away"


# ------------------------------------------------------------------------------------ in time, through the proxy


class Mortal:
    """An engine loop that can die, as its process would on Ray."""

    def __init__(self, core: TorchEngine, store: MemoryStore, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self.core = core
        self.loop = EngineLoop(core, store, clock, lambda stats: 0.01)
        self.running = tasks.create_task(self.loop.run())
        self.dead = asyncio.Event()

    async def generate(self, request: Request) -> Completion:
        return await self._alive(self.loop.generate(request))  # type: ignore[no-any-return]

    async def kv_rows(self, ask: KvAsk) -> KvRows | None:
        return await self._alive(self.loop.kv_rows(ask))  # type: ignore[no-any-return]

    async def update(self, version: int) -> None:
        """As the weight synchronisation does it."""
        with suppress(EngineGone):
            await self._alive(self.loop.prepare(version))
            await self._alive(self.loop.suspend())
            await self._alive(self.loop.commit(version))
            await self._alive(self.loop.resume())

    def abort(self, request_id: str) -> None:
        if not self.dead.is_set():
            self.loop.abort(request_id)

    def release(self, trajectory: str) -> None:
        if not self.dead.is_set():
            self.loop.release(trajectory)

    def die(self) -> None:
        self.dead.set()
        self.running.cancel()

    @property
    def caches(self) -> int:
        return len(self.core._table._contexts)

    async def _alive(self, call: Any) -> Any:
        doing, dying = asyncio.ensure_future(call), asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait([doing, dying], return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise EngineGone("it is gone")
            return await doing
        finally:
            doing.cancel()
            dying.cancel()


class House:
    """Prefill and decode engines in a fleet, and a host's way to them."""

    def __init__(self, clock: Clock, tasks: asyncio.TaskGroup, in_flight: InFlight, prefill: int, decode: int) -> None:
        self.clock, self.tasks, self.in_flight = clock, tasks, in_flight
        self.store = MemoryStore(bucket_mb=0.125)
        self.fleet = Fleet()
        self.engines: dict[str, Mortal] = {}
        self.version = 0
        self.updating = asyncio.Lock()
        self.announced = 0
        for role, count in (("prefill", prefill), ("decode", decode)):
            for number in range(count):
                self.join(f"{role}-{number}/1")
        self.proxy = LLMProxy(clock, self.fleet.update())
        self.fleet.on_change.append(lambda entry: self.proxy.update(self.fleet.update()))

    def join(self, id: str) -> None:
        core = engine_of(MODELS[0], slots=3, prefill_tokens=16, in_flight=self.in_flight)
        if self.version:
            update(core, self.version, MODELS[self.version])
        self.engines[id] = Mortal(core, self.store, self.clock, self.tasks)
        role: Any = id.split("-")[0]
        self.fleet.join(EngineEntry(id, self.engines[id], role=role))  # type: ignore[arg-type]

    def living(self) -> list[str]:
        return [entry.id for entry in self.fleet.living()]

    def updates_left(self) -> bool:
        self.announced += 1
        return self.announced < len(MODELS)

    def kill(self, id: str) -> None:
        self.engines[id].die()
        self.fleet.lose(id, "killed")

    async def update(self, seconds: float) -> None:
        """One engine after the other, so that for a while they differ."""
        async with self.updating:
            self.version += 1
            self.store.push(self.version, MODELS[self.version].state_dict())
            for id in self.living():
                await self.engines[id].update(self.version)
                await self.clock.sleep(seconds)

    async def play(self, name: str, turns: int) -> list[tuple[list[int], Completion]]:
        """Each turn's context and answer; it ends when an answer is aborted."""
        ask = RouteAsk(name, "any")
        route = choose(ask, self.fleet.view)
        self.proxy.begin(ask, route.engine if route else None, route.prefill if route else None)
        played: list[tuple[list[int], Completion]] = []
        context: list[int] = []
        for turn, said in conversation(int(name), turns):
            context = [*context, *said]
            asked = request(name, context, turn=turn, seed=turn, max_tokens=6, **SAMPLED)
            answer = await self.proxy.generate(asked)
            played.append((context, answer))
            if answer.finish == "aborted":
                break
            context = [*context, *tokens_of(answer)]
            await self.clock.sleep(0.02)
        self.proxy.release(name)
        return played


def alone(name: str, turns: int) -> list[list[int]]:
    """The same by one engine."""
    engine, context, answers = engine_of(MODELS[0]), list[int](), []
    for turn, said in conversation(int(name), turns):
        context = [*context, *said]
        (answer,) = run(engine, [request(name, context, turn=turn, seed=turn, max_tokens=6, **SAMPLED)]).values()
        answers.append(tokens_of(answer))
        context = [*context, *tokens_of(answer)]
    return answers


@dataclass(frozen=True)
class Trouble:
    what: str
    """`kill` (with a successor), `lose` (without), `drain` (and reopen), `update`, `abort`."""
    number: int
    at: float


async def befall(house: House, trouble: Trouble, trajectories: int) -> None:
    await house.clock.sleep(trouble.at)
    living = house.living()
    if not living:  # the successor is not there yet
        return
    id = living[trouble.number % len(living)]
    last_decode = id.startswith("decode") and sum(other.startswith("decode") for other in living) == 1
    match trouble.what:
        case "kill":
            house.kill(id)
            await house.clock.sleep(0.05)
            name, _, life = id.partition("/")
            house.join(f"{name}/{int(life) + 1}")
        case "lose" if not last_decode:
            house.kill(id)
        case "drain" if not last_decode:
            house.fleet.use([other for other in living if other != id])
            await house.clock.sleep(0.1)
            house.fleet.use(house.living())
        case "update" if house.updates_left():
            await house.update(0.02 * (trouble.number % 3))
        case "abort":
            house.proxy.abort(str(trouble.number % trajectories))


TROUBLES = st.lists(
    st.builds(
        Trouble,
        st.sampled_from(["kill", "lose", "drain", "update", "update", "abort"]),
        st.integers(0, 11),
        st.sampled_from([0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.13, 0.2, 0.3]),
    ),
    max_size=5,
)


@many(60)
@given(TROUBLES, st.integers(0, 2), st.integers(1, 2), st.integers(1, 6))
def test_engines_come_and_go_and_every_answer_is_what_its_version_would_say(
    troubles: list[Trouble], prefill: int, decode: int, trajectories: int
) -> None:
    """Whatever happens between prefill and decode: answers come, the KV cache of no version is used under another, and
    caches are freed on both sides."""

    async def main(clock: Clock) -> None:
        async with asyncio.TaskGroup() as tasks:
            house = House(clock, tasks, "recompute", prefill, decode)
            playing = [tasks.create_task(house.play(str(n), 3)) for n in range(trajectories)]
            suffering = [tasks.create_task(befall(house, trouble, trajectories)) for trouble in troubles]
            played = [await each for each in playing]
            for each in suffering:
                await each
            await clock.sleep(1.0)  # what was released is released between two steps
            for id in house.living():
                engine = house.engines[id]
                assert engine.caches == 0, f"{id} holds the cache of a trajectory that has ended"
                assert engine.core.stats().running + engine.core.stats().waiting == 0
            for engine in house.engines.values():
                engine.die()
            check(played, {trouble.what for trouble in troubles})

    run_virtual(main)


def check(played: list[list[tuple[list[int], Completion]]], troubles: set[str]) -> None:
    for number, turns in enumerate(played):
        if not troubles & {"update", "abort"}:
            assert [tokens_of(answer) for _, answer in turns] == alone(str(number), 3)
        if "abort" not in troubles:
            assert len(turns) == 3
        for context, answer in turns:
            for span in answer.spans:
                assert span.version is not None and span.kv_version is None
                assert_raw_logprobs(MODELS[span.version], context, span)
                context = [*context, *span.tokens.tolist()]


@pytest.mark.parametrize("when", [0.0, 0.005, 0.015, 0.025, 0.035, 0.045, 0.055])
@pytest.mark.parametrize("what", ["abort", "kill prefill", "kill decode", "lose prefill"])
def test_at_any_moment_of_a_hand_over(what: str, when: float) -> None:
    """The context of 40 tokens takes three steps of 0.01 s; then it travels, then it is answered."""
    numbers = {"abort": 0, "kill prefill": 0, "lose prefill": 0, "kill decode": 1}
    trouble = Trouble(what.split()[0], numbers[what], when)

    async def main(clock: Clock) -> None:
        async with asyncio.TaskGroup() as tasks:
            house = House(clock, tasks, "recompute", 1, 1)
            playing = tasks.create_task(house.play("0", 3))
            await befall(house, trouble, 1)
            played = await playing
            await clock.sleep(1.0)
            assert [house.engines[id].caches for id in house.living()] == [0] * len(house.living())
            for engine in house.engines.values():
                engine.die()
            check([played], {what.split()[0]})
            assert clock.now() < 2.0, "nothing waited for what is gone"

    run_virtual(main)


def test_with_a_prefill_engine_the_decode_engine_computes_one_token_a_turn_and_without_one_all() -> None:
    async def main(clock: Clock) -> None:
        async with asyncio.TaskGroup() as tasks:
            house = House(clock, tasks, "recompute", 1, 1)
            await house.play("0", 2)
            stats = await house.engines["decode-0/1"].loop.stats()
            assert stats.prefilled_tokens == 2
            house.kill("prefill-0/1")
            await house.play("1", 2)
            after = await house.engines["decode-0/1"].loop.stats()
            assert after.prefilled_tokens == 2 + 40 + 1 + 12, "the first answer's last token is new, too"
            assert after.handed_tokens == stats.handed_tokens > 0
            for engine in house.engines.values():
                engine.die()

    run_virtual(main)


def test_a_prefill_engine_that_does_not_answer_is_given_up() -> None:
    async def never(engine: object, ask: KvAsk) -> KvRows | None:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def main(clock: Clock) -> None:
        loop = EngineLoop(engine_of(MODELS[0]), MemoryStore(), clock, lambda stats: 0.01, fetch=never)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(loop.run())
            both = [request("a", PROMPT, max_tokens=5), request("b", PROMPT, max_tokens=5)]
            waits = tasks.create_task(loop.generate(replace(both[0], kv_from="far away")))
            await loop.generate(both[1])
            assert clock.now() < 1.0, "the others go on"
            assert (await loop.stats()).running == 1
            answer = await waits
            assert clock.now() == pytest.approx(HANDOVER_SECONDS, abs=0.2)
            assert (await loop.stats()).handover_seconds == pytest.approx(HANDOVER_SECONDS, abs=0.01)
            running.cancel()
        assert tokens_of(answer) == tokens_of(run(engine_of(MODELS[0]), [both[0]])["a"])

    run_virtual(main)


def test_engines_that_step_in_threads_hand_over_between_two_steps() -> None:
    """As several engines of the inline runtime do."""

    async def main(clock: Clock) -> list[list[int]]:
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
            cores = [engine_of(MODELS[0], slots=8) for _ in range(2)]
            loops = [EngineLoop(cores[n], MemoryStore(), clock, thread=thread) for n, thread in enumerate((one, other))]
            prefill, decode = loops
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(loop.run()) for loop in loops]
                asked = [request(str(n), random_prompt(n, 40 + n), seed=n, max_tokens=20, **SAMPLED) for n in range(6)]

                async def answer(one: Request) -> list[int]:
                    await prefill.generate(replace(one, decode_on="decode"))
                    return tokens_of(await decode.generate(replace(one, kv_from=prefill)))

                answers = await asyncio.gather(*(answer(one) for one in asked))
                assert (await decode.stats()).prefilled_tokens == 6
                for task in running:
                    task.cancel()
        return answers

    answers = run_wall(main)
    for n in range(6):
        asked = request(str(n), random_prompt(n, 40 + n), seed=n, max_tokens=20, **SAMPLED)
        assert answers[n] == tokens_of(run(engine_of(MODELS[0]), [asked])[str(n)])
