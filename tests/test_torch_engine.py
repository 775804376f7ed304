"""The torch engine computes what `transformers` computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from rollweave.engines.torch.engine import TorchEngine
from rollweave.engines.torch.weights import Architecture
from rollweave.errors import ModelError
from rollweave.weights.buckets import checksum
from torch_engine_reference import (
    MODELS,
    Agreement,
    assert_raw_logprobs,
    engine_of,
    prepare,
    random_model,
    random_prompt,
    request,
    run,
    tokens_of,
)

TURNS = 10


def play(engine: TorchEngine, model: Any, names: list[str], agreement: Agreement, turns: int = TURNS) -> None:
    """Episodes of several turns side by side, each answer checked against `generate` on its whole context."""
    contexts = {name: random_prompt(number, 5 + 7 * number) for number, name in enumerate(names)}
    for turn in range(turns):
        limits = {name: 4 + (turn + number) % 5 for number, name in enumerate(names)}
        done = run(engine, [request(n, contexts[n], turn=turn, max_tokens=limits[n]) for n in names])
        for number, name in enumerate(names):
            agreement.check(model, contexts[name], done[name])
            contexts[name] = contexts[name] + tokens_of(done[name]) + random_prompt(100 * turn + number, 3 + turn)
    for name in names:
        engine.release(name)


def report(label: str, agreement: Agreement, record: Any) -> None:
    record(f"{label}/tokens", agreement.tokens)
    record(f"{label}/ties", agreement.ties)
    print(f"{label}: {agreement.tokens} tokens compared with generate, {agreement.ties} ties")


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_equals_generate_alone_batched_and_after_an_update(kind: str, record_property: Any) -> None:
    before, after = random_model(kind, seed=1), random_model(kind, seed=2)
    agreement = Agreement()
    engine = engine_of(before, slots=4)
    play(engine, before, ["alone"], agreement)
    play(engine, before, ["a", "b", "c", "d"], agreement)
    prepare(engine, 1, after.state_dict())
    engine.commit(1)
    play(engine, after, ["a", "b", "c", "d"], agreement)
    report(kind, agreement, record_property)
    assert agreement.tokens > 500
    assert agreement.ties <= agreement.tokens // 100


def test_prompts_in_many_pieces_give_the_same_answer() -> None:
    model = random_model("qwen3")
    prompts = {name: random_prompt(number, 90) for number, name in enumerate("abcd")}
    whole = run(engine_of(model, prefill_tokens=1000), [request(n, p, max_tokens=8) for n, p in prompts.items()])
    for budget in (1, 7, 90):
        engine = engine_of(model, prefill_tokens=budget)
        pieces = run(engine, [request(n, p, max_tokens=8) for n, p in prompts.items()])
        assert {n: tokens_of(c) for n, c in pieces.items()} == {n: tokens_of(c) for n, c in whole.items()}
        assert engine.stats().prefilled_tokens == 360


def test_many_slots_of_one_length_attend_together_and_agree() -> None:
    """Enough equal sequences that attention reads the slots as one range; gaps in the range do no harm."""
    model = random_model("llama")
    engine = engine_of(model, slots=16)
    names = [f"t{i}" for i in range(16)]
    prompts = {name: random_prompt(number, 12 + number % 3) for number, name in enumerate(names)}
    agreement = Agreement()
    # Every third stops early, so the range has holes for most of the way.
    limits = {name: 4 if number % 3 == 1 else 20 for number, name in enumerate(names)}
    done = run(engine, [request(name, prompts[name], max_tokens=limits[name]) for name in names])
    for name in names:
        agreement.check(model, prompts[name], done[name])
    assert agreement.ties <= 2


def test_weights_of_another_type_are_refused_with_the_fix() -> None:
    model = random_model("qwen3")
    engine = engine_of(model)
    other = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    with pytest.raises(
        ModelError, match="came as bfloat16, but this engine computes in float32: publish the weights in"
    ):
        prepare(engine, 1, other)
    with pytest.raises(ValueError, match="version 1 is not prepared"):
        engine.commit(1)


def test_a_commit_in_the_middle_of_an_answer_makes_two_spans() -> None:
    old, new = random_model("qwen3", seed=1), random_model("qwen3", seed=2)
    engine = engine_of(old)
    prompt = random_prompt(3, 40)
    engine.add(request("a", prompt, max_tokens=12))
    for _ in range(5):
        engine.step()
    assert prepare(engine, 7, new.state_dict()) == checksum(new.state_dict())
    assert engine.stats().version == 0
    engine.commit(7)
    completion = run(engine)["a"]
    first, second = completion.spans
    assert (first.version, len(first.tokens)) == (0, 5)
    assert (second.version, len(second.tokens)) == (7, 7)
    assert_raw_logprobs(old, prompt, first)
    assert_raw_logprobs(new, prompt + first.tokens.tolist(), second)
    stats = engine.stats()
    assert (stats.version, stats.checksum) == (7, checksum(new.state_dict()))
    assert stats.recomputed_tokens == 44  # all that had been computed: the prompt and four of five sampled tokens
    assert 0.0 < stats.recompute_seconds < stats.busy_seconds


def test_the_checksum_at_the_start_is_that_of_the_same_weights_prepared() -> None:
    model = random_model("qwen3")
    tensors = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    engine = engine_of(model)
    assert engine.stats().checksum == prepare(engine, 1, {k: v.numpy() for k, v in tensors.items()})


def test_unsupported_models_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"model_type is 'gpt2'.*llama, qwen2, qwen3"):
        Architecture.of(GPT2Config())
    with pytest.raises(ModelError, match="attention_bias"):
        Architecture.of(LlamaConfig(attention_bias=True))
    with pytest.raises(ModelError, match="rope_type is 'dynamic'"):
        Architecture.of(LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}))


def test_missing_or_misshapen_weights_are_refused_by_name() -> None:
    model = random_model("llama")
    engine = engine_of(model)
    tensors = dict(model.state_dict())
    tensors["model.norm.weight"] = torch.ones(3)
    with pytest.raises(ModelError, match=r"model\.norm\.weight.*\(3,\).*\(64,\)"):
        prepare(engine, 1, tensors)
    del tensors["model.norm.weight"]
    with pytest.raises(ModelError, match=r"lack 'model\.norm\.weight'"):
        prepare(engine, 1, tensors)
    with pytest.raises(ModelError, match="1024 positions"):
        engine_of(model, max_context=2000)


@pytest.mark.llm
def test_smollm2_equals_generate(record_property: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rollweave.policies import smollm2

    folder = smollm2.ensure()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    engine = TorchEngine.from_folder(folder, slots=4, prefill_tokens=256, max_context=512)
    questions = ["What is the capital of France?", "Count from one to five.", "Name a colour.", "Who are you?"]
    contexts = {
        str(number): tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for number, question in enumerate(questions)
    }
    follow_up = tokenizer.encode("<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n")
    agreement = Agreement()

    def play(turn: int, names: list[str], checked: bool) -> None:
        done = run(engine, [request(n, contexts[n], turn=turn, max_tokens=6) for n in names])
        for name, completion in done.items():
            if checked:
                agreement.check(model, contexts[name], completion)
            contexts[name] = contexts[name] + tokens_of(completion) + follow_up
        assert turn or "Paris" in tokenizer.decode(contexts["0"])

    play(0, ["0"], checked=True)  # alone
    for turn in range(1, 10):
        play(turn, list(contexts), checked=turn in (1, 9))  # a full batch, the tenth turn
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    prepare(engine, 1, tensors)
    engine.commit(1)
    play(10, list(contexts), checked=True)  # after a weight update
    report("smollm2", agreement, record_property)
    assert agreement.ties <= 2
