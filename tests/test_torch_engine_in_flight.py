"""What an update does to answers under way: recompute, keep, restart_turn; checked against `transformers`."""

from __future__ import annotations

import pytest

from rollweave.engines.torch.engine import TorchEngine
from rollweave.trajectory import Span
from rollweave.versions import Version
from torch_engine_reference import (
    Agreement,
    assert_raw_logprobs,
    engine_of,
    prepare,
    random_model,
    random_prompt,
    request,
    run,
    tokens_of,
    update,
)

OLD, NEW = random_model("qwen3", seed=1), random_model("qwen3", seed=2)
PROMPT = random_prompt(3, 40)


def updated(in_flight: str, temperature: float = 0.0, seed: int = 0) -> tuple[TorchEngine, list[Span]]:
    """An answer of 12 tokens, the weights changed after 5."""
    engine = engine_of(OLD, in_flight=in_flight)
    engine.add(request("a", PROMPT, max_tokens=12, temperature=temperature, seed=seed))
    for _ in range(5):
        engine.step()
    update(engine, 7, NEW)
    return engine, run(engine)["a"].spans


def test_recompute_goes_on_as_the_new_policy_would_from_the_same_tokens() -> None:
    engine, (first, second) = updated("recompute")
    assert [(s.version, s.kv_version, len(s.tokens)) for s in (first, second)] == [(0, None, 5), (7, None, 7)]
    context = PROMPT + first.tokens.tolist()
    continued = run(engine_of(NEW), [request("a", context, max_tokens=7)])["a"]
    assert second.tokens.tolist() == tokens_of(continued)
    agreement = Agreement()
    agreement.check(NEW, context, continued)
    assert agreement.ties == 0
    assert engine.stats().restarted_tokens == 0


def test_keep_carries_the_cache_over_and_says_so() -> None:
    engine, (first, second) = updated("keep")
    assert [(s.version, s.kv_version, len(s.tokens)) for s in (first, second)] == [(0, None, 5), (7, 0, 7)]
    assert engine.stats().recomputed_tokens == 0
    assert engine.stats().recompute_seconds == 0.0
    # The cache really is the old one: the new policy on its own cache would not give these log-probs.
    with pytest.raises(AssertionError):
        assert_raw_logprobs(NEW, PROMPT + first.tokens.tolist(), second)


def test_keep_does_not_carry_a_cache_into_another_history() -> None:
    """The trainer died and went back: what is here was computed by a version that is abandoned."""
    engine = engine_of(OLD, in_flight="keep")
    engine.add(request("a", PROMPT, max_tokens=12))
    for _ in range(5):
        engine.step()
    update(engine, Version.of(1, 0), NEW)
    first, second = run(engine)["a"].spans
    assert [(s.version, s.kv_version) for s in (first, second)] == [(0, None), (Version.of(1, 0), None)]
    assert engine.stats().recomputed_tokens >= len(PROMPT)
    assert_raw_logprobs(NEW, PROMPT + first.tokens.tolist(), second)


def test_keep_marks_later_turns_until_the_cache_is_gone() -> None:
    engine, spans = updated("keep")
    context = PROMPT + [token for span in spans for token in span.tokens.tolist()]
    (next_turn,) = run(engine, [request("a", context + random_prompt(1, 5), turn=1, max_tokens=3)])["a"].spans
    assert (next_turn.version, next_turn.kv_version) == (7, 0)
    engine.release("a")
    (afresh,) = run(engine, [request("a", context, turn=2, max_tokens=3)])["a"].spans
    assert (afresh.version, afresh.kv_version) == (7, None)
    assert_raw_logprobs(NEW, context, afresh)


def test_keep_names_the_oldest_of_several_versions() -> None:
    engine = engine_of(OLD, in_flight="keep")
    engine.add(request("a", PROMPT, max_tokens=9))
    for version in (1, 2):
        for _ in range(3):
            engine.step()
        update(engine, version, NEW)
    spans = run(engine)["a"].spans
    assert [(s.version, s.kv_version) for s in spans] == [(0, None), (1, 0), (2, 0)]


def test_restart_turn_samples_the_whole_turn_from_the_new_policy() -> None:
    engine, (only,) = updated("restart_turn", temperature=1.0, seed=11)
    assert (only.version, only.kv_version, len(only.tokens)) == (7, None, 12)
    fresh = run(engine_of(NEW), [request("a", PROMPT, max_tokens=12, temperature=1.0, seed=11)])["a"]
    assert only.tokens.tolist() == tokens_of(fresh), "the same seed, from the first place on"
    assert_raw_logprobs(NEW, PROMPT, only)
    stats = engine.stats()
    assert (stats.restarted_tokens, stats.sampled_tokens) == (5, 17)


def test_restart_turn_leaves_earlier_turns_and_waiting_requests_alone() -> None:
    engine = engine_of(OLD, slots=1, in_flight="restart_turn")
    first = tokens_of(run(engine, [request("a", PROMPT, max_tokens=4)])["a"])
    context = PROMPT + first + random_prompt(1, 5)
    engine.add(request("a", context, turn=1, max_tokens=6))
    engine.add(request("b", PROMPT, max_tokens=6))
    engine.step()
    engine.step()
    update(engine, 1, NEW)
    done = run(engine)
    for name, prompt in (("a", context), ("b", PROMPT)):
        assert [span.version for span in done[name].spans] == [1]
        Agreement().check(NEW, prompt, done[name])
    assert engine.stats().restarted_tokens == 2


def test_recomputing_is_lazy_only_whoever_runs_again_pays() -> None:
    engine = engine_of(OLD)
    for number, name in enumerate(["idle", "gone", "back"]):
        run(engine, [request(name, random_prompt(number, 30), max_tokens=2)])
    engine.add(request("running", PROMPT, max_tokens=6))
    engine.step()
    engine.step()
    update(engine, 1, NEW)
    assert engine.stats().recomputed_tokens == 0, "an update itself computes nothing"
    run(engine)
    assert engine.stats().recomputed_tokens == 41  # the prompt and the first sampled token, of "running" alone
    before = engine.stats().recompute_seconds
    assert before > 0.0
    engine.release("gone")
    run(engine, [request("back", random_prompt(2, 30), turn=1, max_tokens=2)])
    assert engine.stats().recomputed_tokens == 41 + 30
    assert engine.stats().recompute_seconds > before


def test_an_engine_just_made_takes_any_version_and_answers_as_it() -> None:
    """A restarted engine comes up with the weights of the folder and takes the newest version directly."""
    engine = engine_of(OLD)
    checksum = prepare(engine, 41, NEW.state_dict())
    engine.commit(41)
    assert (engine.stats().version, engine.stats().checksum) == (41, checksum)
    completion = run(engine, [request("a", PROMPT, max_tokens=8)])["a"]
    assert [span.version for span in completion.spans] == [41]
    Agreement().check(NEW, PROMPT, completion)
