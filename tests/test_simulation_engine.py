"""The simulated GPU engine: advanced per event, it must do what an engine that makes every step would do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.clock import Clock, run_virtual
from rollweave.config.control import InFlight
from rollweave.config.hardware import DEVICES, Constants
from rollweave.config.models import MODELS
from rollweave.engines.protocol import Completion, Request, Sampling
from rollweave.errors import EngineGone
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.fleet.router import RouteAsk
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.hardware.engine import GpuEngine
from rollweave.simulation.hardware.prefill import PrefillEngine
from rollweave.trajectory import TokenIds, repeat_item

MODEL = MODELS["qwen3-8b"]


def costs(device: str = "H20", kv_tokens: int | None = None, slots: int | None = None, **constants: Any) -> EngineCosts:
    made = EngineCosts(MODEL, DEVICES[device], Constants(**constants))
    made.kv_tokens = kv_tokens or made.kv_tokens
    made.slots = slots or made.slots
    return made


def request(id: str, context: int, answer: int, trajectory: str = "", max_tokens: int = 10**6) -> Request:
    return Request(id, trajectory or id, shown(context, answer), 0, Sampling(max_tokens=max_tokens))


def shown(tokens: int, answer: int) -> TokenIds:
    """A context of so many tokens; their id says how long the answer will be."""
    return repeat_item(np.array([answer], np.int32), tokens)


def gpu_engine(clock: Clock, model: EngineCosts, **options: Any) -> GpuEngine:
    return GpuEngine(clock, model, lambda request: shown(request.tokens.item(-1), 0), **options)


def versions(completion: Completion) -> list[tuple[int | None, int]]:
    return [(span.version, len(span.tokens)) for span in completion.spans]


def tokens(completion: Completion) -> int:
    return sum(len(span.tokens) for span in completion.spans)


# -------------------------------------------------------------------------------- against an engine that steps


@dataclass
class Asked:
    at: float
    context: int
    answer: int


@dataclass
class Stepping:
    """One step at a time, as the docstrings of `roofline` and `gpu_engine` say it."""

    costs: EngineCosts
    asked: list[Asked]
    ended: dict[int, float] = field(default_factory=dict)

    def run(self) -> dict[int, float]:
        now, waiting = 0.0, sorted(range(len(self.asked)), key=lambda n: self.asked[n].at)
        running: dict[int, int] = {}
        while waiting or running:
            if not running:
                now = max(now, self.asked[waiting[0]].at)
            new, new_pairs = 0, 0.0
            while waiting and self.asked[waiting[0]].at <= now + 1e-9 and len(running) < self.costs.slots:
                number = waiting.pop(0)
                context = self.asked[number].context
                running[number] = 0
                new += context
                new_pairs += pairs(context, context)
            cached = sum(self.asked[n].context + drawn for n, drawn in running.items())
            now += self.costs.fixed(len(running)) + self.costs.per_cached_token * cached
            if new:
                now += self.costs.prefill(new, new_pairs, len(running))
            running = {n: drawn + 1 for n, drawn in running.items()}
            for n in [n for n, drawn in running.items() if drawn == self.asked[n].answer]:
                del running[n]
                self.ended[n] = now
        return self.ended


async def play(clock: Clock, engine: GpuEngine, asked: list[Asked]) -> dict[int, float]:
    ended: dict[int, float] = {}

    async def one(number: int, asked: Asked) -> None:
        await clock.sleep(asked.at)
        completion = await engine.generate(request(str(number), asked.context, asked.answer))
        assert tokens(completion) == asked.answer
        ended[number] = clock.now()

    async with asyncio.TaskGroup() as tasks:
        for number, each in enumerate(asked):
            tasks.create_task(one(number, each))
    return ended


work = st.lists(
    st.builds(Asked, st.floats(0, 3).map(lambda x: round(x, 3)), st.integers(1, 900), st.integers(1, 120)),
    min_size=1,
    max_size=8,
)


@given(work, st.sampled_from(["H20", "H800"]), st.sampled_from([1, 2, 256]))
@settings(max_examples=150, deadline=None)
def test_it_ends_every_request_when_an_engine_that_makes_every_step_would(
    asked: list[Asked], device: str, slots: int
) -> None:
    model = costs(device, slots=slots)
    ended = run_virtual(lambda clock: play(clock, gpu_engine(clock, model, prefix_cache=False), asked))
    expected = Stepping(model, asked).run()
    assert ended == pytest.approx(expected, abs=1e-6)


@given(work, st.sampled_from(["H20", "H800", "A100"]))
@settings(max_examples=60, deadline=None)
def test_no_engine_beats_its_roofline(asked: list[Asked], device: str) -> None:
    """Even with every efficiency 1 and no overhead: neither the arithmetic nor the bytes of the work fit into less."""
    perfect = costs(device, compute_efficiency=1.0, bandwidth_efficiency=1.0, step_overhead=0.0)

    async def main(clock: Clock) -> float:
        engine = gpu_engine(clock, perfect, prefix_cache=False)
        await play(clock, engine, asked)
        return engine.busy_seconds()

    busy = run_virtual(main)
    peak, bandwidth = DEVICES[device].tflops * 1e12, DEVICES[device].bandwidth * 1e12
    flops = sum(2 * MODEL.params * (each.context + each.answer - 1) for each in asked)
    read = sum(MODEL.kv_bytes_per_token * each.context * each.answer for each in asked)
    longest = max(each.answer for each in asked)
    assert busy >= flops / peak * (1 - 1e-9)
    assert busy >= (read + longest * MODEL.weight_bytes) / bandwidth * (1 - 1e-9)


# ------------------------------------------------------------------------------------------ the engine's contract


def drive(main: Any) -> Any:
    return run_virtual(main)


async def started(answer: Awaitable[Completion], clock: Clock) -> asyncio.Future[Completion]:
    task = asyncio.ensure_future(answer)
    await clock.sleep(0)
    return task


def test_a_request_that_nobody_waits_for_leaves_the_batch_and_its_tokens_count_as_sampled() -> None:
    async def main(clock: Clock) -> tuple[float, int, int]:
        engine = gpu_engine(clock, costs())
        task = await started(engine.generate(request("a", 100, 10**5)), clock)
        await clock.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        engine.abort("a")  # as a cancelled caller does
        stats = await engine.stats()
        began = clock.now()
        await engine.generate(request("b", 100, 100))
        return clock.now() - began, stats.running, stats.sampled_tokens

    seconds, running, sampled = drive(main)
    alone = costs()
    assert running == 0 and sampled > 50
    assert seconds == pytest.approx(Stepping(alone, [Asked(0, 100, 100)]).run()[0], abs=alone.fixed(2) * 1.5)


async def update(engine: GpuEngine, version: int) -> None:
    await engine.prepare(version)
    await engine.suspend()
    await engine.commit(version)
    await engine.resume()


@pytest.mark.parametrize("mode", ["recompute", "keep", "restart_turn"])
def test_only_recomputing_costs_the_whole_context_again(mode: InFlight) -> None:
    async def main(clock: Clock) -> tuple[Completion, Any]:
        engine = gpu_engine(clock, costs(), in_flight=mode)
        task = await started(engine.generate(request("a", 2000, 400)), clock)
        await clock.sleep(1.0)
        await update(engine, 1)
        return await task, await engine.stats()

    completion, stats = drive(main)
    before = len(completion.spans[0].tokens)
    assert (stats.recompute_seconds > 0) == (mode == "recompute")
    assert stats.recomputed_tokens == (2000 + before if mode == "recompute" else 0)


def test_standing_still_costs_exactly_its_time() -> None:
    async def main(clock: Clock, pause: float) -> float:
        engine = gpu_engine(clock, costs())
        task = await started(engine.generate(request("a", 100, 200)), clock)
        await clock.sleep(0.5)
        await engine.suspend()
        await clock.sleep(pause)
        await engine.resume()
        await task
        return clock.now()

    assert drive(lambda clock: main(clock, 7.0)) == pytest.approx(drive(lambda clock: main(clock, 0.0)) + 7.0)


def test_the_next_turn_computes_only_what_is_new_until_the_weights_change() -> None:
    async def main(clock: Clock) -> list[int]:
        engine = gpu_engine(clock, costs())
        prefilled = []
        for turn, context in enumerate((1000, 1200, 1400)):
            if turn == 2:
                await update(engine, 1)
            await engine.generate(request(f"a#{turn}", context, 50, trajectory="a"))
            stats = await engine.stats()
            prefilled.append(stats.prefilled_tokens + stats.recomputed_tokens)
        return prefilled

    first, second, third = drive(main)
    assert first == 1000
    assert second - first == 1200 - 1050
    assert third - second == 1400


def test_a_full_cache_preempts_and_nothing_is_lost() -> None:
    async def main(clock: Clock) -> tuple[dict[int, float], Any]:
        engine = gpu_engine(clock, costs(kv_tokens=3000))
        asked = [Asked(0.0, 500, 700) for _ in range(5)]
        return await play(clock, engine, asked), await engine.stats()

    ended, stats = drive(main)
    assert len(ended) == 5 and stats.sampled_tokens == 5 * 700
    assert stats.evictions > 0 and stats.recomputed_tokens > 0


def test_idle_caches_give_way_to_running_requests() -> None:
    async def main(clock: Clock) -> Any:
        engine = gpu_engine(clock, costs(kv_tokens=2000))
        await engine.generate(request("a#1", 900, 50, trajectory="a"))
        await engine.generate(request("b#1", 1500, 50, trajectory="b"))
        before = (await engine.stats()).prefilled_tokens
        await engine.generate(request("a#2", 1000, 50, trajectory="a"))
        return (await engine.stats()).prefilled_tokens - before

    assert drive(main) == 1000


def test_every_call_to_a_dead_engine_fails_also_those_that_are_open() -> None:
    async def main(clock: Clock) -> None:
        engine = gpu_engine(clock, costs())
        running, waiting = [await started(engine.generate(request(id, 100, 200)), clock) for id in ("a", "b")]
        await clock.sleep(0.5)
        engine.die()
        for task in (running, waiting):
            with pytest.raises(EngineGone):
                await task
        for call in (engine.suspend, engine.resume, engine.stats, lambda: engine.prepare(1), lambda: engine.commit(1)):
            with pytest.raises(EngineGone):
                await call()
        with pytest.raises(EngineGone):
            await engine.generate(request("c", 100, 200))
        await clock.sleep(100.0)  # no timer of it is left that would fail

    drive(main)


def test_experts_that_nobody_chose_are_not_read() -> None:
    model = MODELS["qwen3-30b-a3b"]
    assert model.params_read(1) == pytest.approx(model.active, rel=0.01)
    assert model.params_read(1) < model.params_read(8) < model.params_read(512) <= model.params


def test_grouped_query_attention_keeps_a_quarter_of_the_cache() -> None:
    assert MODEL.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2


def test_tensor_parallelism_halves_the_work_but_pays_for_its_links() -> None:
    one, two = EngineCosts(MODEL, DEVICES["H800"], Constants()), EngineCosts(MODEL, DEVICES["H800"], Constants(), 2)
    assert one.products(4096) / 2 < two.products(4096) < one.products(4096)
    assert two.kv_tokens > 2 * one.kv_tokens


def test_a_moved_request_draws_only_the_rest_and_computes_its_context_anew() -> None:
    asked = request("a", context=1000, answer=400)

    async def moved(clock: Clock, after: float) -> tuple[Completion, float, list[int], int]:
        one, other = gpu_engine(clock, costs()), gpu_engine(clock, costs())
        begun = asyncio.ensure_future(one.generate(asked))
        await clock.sleep(after)
        one.abort("a")
        half = await begun
        since = clock.now()
        whole = await other.generate(replace(asked, begun=tuple(half.spans)))
        return whole, clock.now() - since, [(await e.stats()).sampled_tokens for e in (one, other)], tokens(half)

    whole, seconds, sampled, half = run_virtual(lambda clock: moved(clock, 1.0))
    assert 0 < half < 400 and sampled == [half, 400 - half]
    assert (tokens(whole), whole.finish, len(whole.spans)) == (400, "stop", 1)
    rest = Asked(0.0, 1000 + half, 400 - half)
    assert seconds == pytest.approx(Stepping(costs(), [rest]).run()[0], rel=1e-6)


def test_the_first_step_after_a_pause_takes_longer() -> None:
    slow = costs()
    slow.wake = 0.5

    async def main(clock: Clock, costs: EngineCosts) -> list[float]:
        engine, seconds = gpu_engine(clock, costs), []
        for number in range(2):
            began = clock.now()
            both = [engine.generate(request(f"{number}{n}", 100, 10 * (n + 1))) for n in range(2)]
            await both[0]
            both.append(engine.generate(request(f"{number}x", 100, 20)))
            for each in both:
                await each
            seconds.append(clock.now() - began)
            await clock.sleep(5.0)
        return seconds

    awake, woken = (run_virtual(lambda clock, each=each: main(clock, each)) for each in (costs(), slow))
    assert woken == pytest.approx([each + 0.5 for each in awake]), "once per pause, not per request"


# ------------------------------------------------------------------------------------------ prefill engines


def split(clock: Clock) -> tuple[PrefillEngine, GpuEngine, LLMProxy]:
    """A prefill and a decode engine, and a host's way to them."""
    prefill, decode, fleet = PrefillEngine(clock, costs(), number=0), gpu_engine(clock, costs(), number=1), Fleet()
    fleet.join(EngineEntry("prefill", prefill, role="prefill"))
    fleet.join(EngineEntry("decode", decode, role="decode"))
    proxy = LLMProxy(clock, fleet.update())
    proxy.begin(RouteAsk("a", "any"), "decode", "prefill")
    return prefill, decode, proxy


def test_a_prefill_engine_computes_what_is_new_and_hands_it_over() -> None:
    async def main(clock: Clock) -> None:
        prefill, decode, proxy = split(clock)
        model = costs()
        await proxy.generate(request("a#0", 4000, 10, "a"))
        first = clock.now()
        assert prefill.counters.prefilled_tokens == 4000 and decode.counters.prefilled_tokens == 0
        assert first > model.recompute(4000, pairs(4000, 4000)) + model.handover(4000)
        await proxy.generate(request("a#1", 4500, 10, "a"))
        assert prefill.counters.prefilled_tokens == 4500
        assert clock.now() - first < first
        proxy.release("a")
        await proxy.generate(request("a#2", 4500, 10, "a"))
        assert decode.counters.prefilled_tokens + prefill.counters.prefilled_tokens == 9000

    run_virtual(main)


def test_an_answer_that_is_given_up_while_its_context_is_computed_ends_at_once() -> None:
    async def main(clock: Clock) -> None:
        _, decode, proxy = split(clock)
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(proxy.generate(request("a#0", 30_000, 10_000, "a")))
            await clock.sleep(0.1)
            proxy.abort("a")
            assert (await asked).finish == "aborted"
        assert clock.now() == pytest.approx(0.1) and decode.counters.sampled_tokens == 0

    run_virtual(main)


def test_a_prefill_engine_stands_still_between_two_contexts_and_computes_again_under_new_weights() -> None:
    async def main(clock: Clock) -> None:
        prefill, _, proxy = split(clock)
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(proxy.generate(request("a#0", 4000, 10, "a")))
            await clock.sleep(0.01)
            await prefill.suspend()
            assert clock.now() == pytest.approx(costs().recompute(4000, pairs(4000, 4000)))
            await prefill.prepare(1)
            await prefill.commit(1)
            later = tasks.create_task(proxy.generate(request("b#0", 100, 10, "b")))
            await clock.sleep(100.0)
            assert asked.done() and not later.done()
            await prefill.resume()
        await proxy.generate(request("a#1", 4500, 10, "a"))
        stats = await prefill.stats()
        assert (stats.prefilled_tokens, stats.recomputed_tokens, stats.version) == (4600, 4000, 1)

    run_virtual(main)
