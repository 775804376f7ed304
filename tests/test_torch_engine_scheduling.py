"""Slots, queues and ends of answers: what the torch engine's scheduler owes its caller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollweave.engines.protocol import Sampling
from rollweave.engines.torch.engine import Context, SlotTable
from rollweave.engines.torch.model import CALL_BYTES, Chunk, plan
from rollweave.engines.torch.sampling import finish_of, text_of
from rollweave.trajectory import token_ids
from torch_engine_reference import TOKENIZER, engine_of, random_model, random_prompt, request, run, tokens_of, update

MODEL = random_model("qwen3")


def test_a_next_turn_computes_only_what_is_new() -> None:
    engine = engine_of(MODEL)
    prompt = random_prompt(0, 30)
    first = run(engine, [request("a", prompt, max_tokens=6)])["a"]
    longer = prompt + tokens_of(first) + random_prompt(1, 10)
    run(engine, [request("a", longer, turn=1, max_tokens=6)])
    stats = engine.stats()
    # The last sampled token of turn one was never fed back: it is computed with the observation that follows it.
    assert stats.prefilled_tokens == 30 + 1 + 10
    assert (stats.recomputed_tokens, stats.sampled_tokens) == (0, 12)


def test_a_rewritten_context_keeps_only_the_common_prefix() -> None:
    prompt = random_prompt(0, 30)
    rewritten = prompt[:20] + random_prompt(9, 15)
    engine = engine_of(MODEL)
    run(engine, [request("a", prompt, max_tokens=6)])
    again = run(engine, [request("a", rewritten, turn=1, max_tokens=6)])["a"]
    fresh = run(engine_of(MODEL), [request("a", rewritten, max_tokens=6)])["a"]
    assert tokens_of(again) == tokens_of(fresh)
    assert engine.stats().prefilled_tokens == 30 + 15


def test_the_same_context_again_computes_its_last_token_again() -> None:
    engine = engine_of(MODEL)
    prompt = random_prompt(0, 30)
    first = run(engine, [request("a", prompt, max_tokens=6)])["a"]
    assert tokens_of(run(engine, [request("a", prompt, turn=1, max_tokens=6)])["a"]) == tokens_of(first)
    assert (engine.stats().prefilled_tokens, engine.stats().recomputed_tokens) == (30, 1)


def test_evicted_trajectories_are_recomputed_and_answer_the_same() -> None:
    names = [f"t{i}" for i in range(6)]
    answers, stats = {}, {}
    for slots in (2, 6):
        engine = engine_of(MODEL, slots=slots)
        contexts = {name: random_prompt(i, 10 + i) for i, name in enumerate(names)}
        for turn in range(3):
            done = run(engine, [request(n, contexts[n], turn=turn, max_tokens=5) for n in names])
            contexts = {n: contexts[n] + tokens_of(done[n]) + random_prompt(turn, 4) for n in names}
        answers[slots], stats[slots] = contexts, engine.stats()
    assert answers[2] == answers[6]
    assert (stats[6].evictions, stats[6].recomputed_tokens) == (0, 0)
    assert stats[2].evictions == 16  # every turn but the first two needs another trajectory's slot
    assert stats[2].recomputed_tokens > 0
    assert stats[2].prefilled_tokens == stats[6].prefilled_tokens


def test_eviction_takes_the_longest_idle_and_spares_whoever_waits() -> None:
    table = SlotTable(3)
    contexts = {name: table.context(name) for name in "abc"}
    for context in contexts.values():
        assert table.occupy(context)
    assert not table.occupy(table.context("d"))  # all running: none is evicted
    for name in "bac":
        table.rest(contexts[name])
    contexts["b"].wanted = True
    assert table.occupy(table.context("d"))
    assert [contexts[name].slot is None for name in "abc"] == [True, False, False]
    assert table.evictions == 1


def test_requests_beyond_the_slots_wait_in_order() -> None:
    engine = engine_of(MODEL, slots=2)
    for i in range(5):
        engine.add(request(f"t{i}", random_prompt(i, 5), max_tokens=3))
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 3)
    assert list(run(engine)) == ["t0", "t1", "t2", "t3", "t4"]


def test_abort_returns_what_it_had() -> None:
    engine = engine_of(MODEL, slots=1)
    prompt = random_prompt(0, 10)
    whole = tokens_of(run(engine_of(MODEL), [request("a", prompt, max_tokens=10)])["a"])
    engine.add(request("a", prompt, max_tokens=10))
    engine.add(request("b", prompt, max_tokens=10))
    for _ in range(4):
        engine.step()
    waiting, running = engine.abort("b/0"), engine.abort("a/0")
    assert waiting is not None and (waiting.finish, waiting.spans, waiting.text) == ("aborted", [], "")
    assert running is not None and running.finish == "aborted"
    assert tokens_of(running) == whole[:4]
    assert engine.abort("a/0") is None
    assert not engine.has_work
    # Nothing is lost: the trajectory goes on from where it stopped, without computing its context again.
    rest = run(engine, [request("a", prompt + whole[:4], turn=1, max_tokens=6)])["a"]
    assert tokens_of(rest) == whole[4:]
    assert engine.stats().recomputed_tokens == 0


def test_release_frees_the_slot_now_or_when_the_request_ends() -> None:
    engine = engine_of(MODEL, slots=1)
    run(engine, [request("a", random_prompt(0, 10), max_tokens=2)])
    engine.release("a")
    engine.add(request("b", random_prompt(0, 10), max_tokens=3))
    engine.step()
    engine.release("b")
    assert len(tokens_of(run(engine)["b"])) == 3
    run(engine, [request("c", random_prompt(0, 10), max_tokens=2)])
    assert engine.stats().evictions == 0
    engine.release("unknown")


def test_one_turn_at_a_time_and_no_empty_context() -> None:
    engine = engine_of(MODEL)
    engine.add(request("a", [1, 2, 3]))
    with pytest.raises(ValueError, match="'a' already has a request"):
        engine.add(request("a", [1, 2, 3], turn=1))
    with pytest.raises(ValueError, match="no tokens"):
        engine.add(request("b", []))


def test_idle_trajectories_are_recomputed_after_a_commit() -> None:
    new = random_model("qwen3", seed=5)
    prompt = random_prompt(0, 30)
    engine = engine_of(MODEL)
    answer = tokens_of(run(engine, [request("a", prompt, max_tokens=6)])["a"])
    update(engine, 1, new)
    context = prompt + answer + random_prompt(1, 10)
    second = run(engine, [request("a", context, turn=1, max_tokens=6)])["a"]
    assert tokens_of(second) == tokens_of(run(engine_of(new), [request("a", context, max_tokens=6)])["a"])
    assert [span.version for span in second.spans] == [1]
    assert (engine.stats().recomputed_tokens, engine.stats().evictions) == (35, 0)


def test_a_stop_token_ends_the_answer_and_belongs_to_it() -> None:
    prompt = random_prompt(0, 10)
    free = tokens_of(run(engine_of(MODEL), [request("a", prompt, max_tokens=12)])["a"])
    stop = free[5]
    completion = run(engine_of(MODEL), [request("a", prompt, max_tokens=12, stop_tokens=(stop,))])["a"]
    assert tokens_of(completion) == free[: free.index(stop) + 1]
    assert completion.finish == "stop"
    assert completion.text == TOKENIZER.decode(free[: free.index(stop)], skip_special_tokens=True)


def test_length_ends_the_answer_at_max_tokens_or_at_the_context_limit() -> None:
    prompt = random_prompt(0, 10)
    limited = run(engine_of(MODEL), [request("a", prompt, max_tokens=4)])["a"]
    assert (len(tokens_of(limited)), limited.finish) == (4, "length")
    engine = engine_of(MODEL, max_context=16)
    full = run(engine, [request("a", prompt, max_tokens=40)])["a"]
    assert (len(tokens_of(full)), full.finish) == (6, "length")
    beyond = run(engine, [request("b", random_prompt(0, 16), max_tokens=40)])["b"]
    assert (beyond.spans, beyond.finish) == ([], "length")


def test_the_engine_stops_at_a_stop_string() -> None:
    prompt = random_prompt(2, 10)
    free = tokens_of(run(engine_of(MODEL), [request("a", prompt, max_tokens=20)])["a"])
    text = TOKENIZER.decode(free[:12], skip_special_tokens=True)
    stop = text[-3:]
    completion = run(engine_of(MODEL), [request("a", prompt, max_tokens=20, stop_strings=("never", stop))])["a"]
    assert completion.finish == "stop"
    assert stop in completion.text
    assert stop not in TOKENIZER.decode(tokens_of(completion)[:-1], skip_special_tokens=True)


@pytest.mark.parametrize(
    "text, stop", [("go right. </act>", "</act>"), ("the café", "é"), ("done 🏁", "🏁"), ("a\n", "\n")]
)
def test_stop_strings_across_tokens_and_bytes(text: str, stop: str) -> None:
    """Byte by byte, the answer ends exactly at the byte that completes the stop string."""
    sampling = Sampling(max_tokens=100, stop_strings=(stop,))
    tokens = TOKENIZER.encode("x" * 40 + text)
    ends = [finish_of(tokens[:n], sampling, 10, TOKENIZER) for n in range(1, len(tokens) + 1)]
    assert ends == [None] * (len(tokens) - 1) + ["stop"]


def test_a_special_token_inside_does_not_hide_a_stop_string() -> None:
    end = TOKENIZER.convert_tokens_to_ids("<|user|>")
    a, b = TOKENIZER.encode("ab")
    assert finish_of([a, end, b], Sampling(stop_strings=("ab",)), 10, TOKENIZER) == "stop"
    assert text_of([a, end, b], Sampling(), TOKENIZER) == "ab"


def test_context_counts_what_is_computed_again() -> None:
    context = Context("a")
    context.rewrite(token_ids([1, 2, 3, 4, 5]))
    assert context.advance(5, version=0) == 0
    context.computed = 0
    assert (context.advance(3, version=1), context.advance(2, version=2)) == (3, 2)
    assert context.kv_version == 1
    context.rewrite(token_ids([1, 2, 9, 9, 9]))
    assert (context.computed, context.seen) == (2, 2)
    assert context.advance(3, version=3) == 0


def test_neighbouring_slots_attend_together_while_padding_is_cheaper_than_calls() -> None:
    token_bytes = CALL_BYTES // 100  # a call costs as much as reading 100 tokens

    def groups(*places: tuple[int, int]) -> list[tuple[int, int, int]]:
        chunks = [Chunk(slot, length - 1, 1) for slot, length in places]
        return [(r.first, r.last, r.length) for r in plan(chunks, token_bytes).ranges]

    assert groups((0, 300), (1, 320), (2, 310)) == [(0, 2, 320)]
    assert groups((0, 300), (1, 500), (2, 510)) == [(0, 0, 300), (1, 2, 510)]  # 200 tokens of padding: not worth it
    assert groups((0, 40), (2, 40)) == [(0, 2, 40)]  # a hole of 40 tokens is cheaper than a call
    assert groups((0, 400), (2, 400)) == [(0, 0, 400), (2, 2, 400)]


@pytest.mark.parametrize("steps", [0, 1, 4, 9])
def test_a_moved_request_goes_on_where_it_was(steps: int) -> None:
    """Another engine gives the answer that the first one would have given, and samples only the rest of it."""
    asked = request("a", random_prompt(3, 40), seed=11, max_tokens=12, temperature=1.0, top_p=0.9)
    whole = run(engine_of(MODEL), [asked])["a"]
    one, other = engine_of(MODEL), engine_of(MODEL)
    one.add(asked)
    for _ in range(steps):
        one.step()
    taken = one.abort(asked.id)
    assert taken is not None and taken.finish == "aborted"
    rest = run(other, [replace(asked, begun=tuple(taken.spans))])["a"]
    assert (rest.finish, rest.text, len(rest.spans)) == (whole.finish, whole.text, 1)
    assert rest.spans[0].tokens.tolist() == whole.spans[0].tokens.tolist()
    assert rest.spans[0].logprobs == pytest.approx(whole.spans[0].logprobs, abs=1e-4)
    assert one.stats().sampled_tokens + other.stats().sampled_tokens == len(whole.spans[0].tokens)
    assert sum(len(span.tokens) for span in taken.spans) == steps, "what was handed over is left alone"
