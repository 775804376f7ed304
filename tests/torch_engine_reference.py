"""What the torch engine is compared with: small random models, and `transformers` computing the same thing slowly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rollweave.engines.protocol import Completion, Request, Sampling
from rollweave.engines.torch.engine import TorchEngine
from rollweave.policies.tiny import byte_tokenizer
from rollweave.trajectory import Span
from rollweave.weights.store import MemoryStore
from spans import request_of

torch.set_num_threads(1)  # these models are too small to gain from more

TIE = 1e-4
TOKENIZER = byte_tokenizer()
VOCABULARY = len(TOKENIZER)

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,  # far from flat logits, so that greedy choices are rarely ties
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE)),
}


def random_model(kind: str, seed: int = 0) -> Any:
    """A model in which no weight is at its default: biases and norms are random too."""
    torch.manual_seed(seed)
    model = MODELS[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def random_prompt(seed: int, length: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def engine_of(model: Any, **options: Any) -> TorchEngine:
    return TorchEngine(model, TOKENIZER, **{"slots": 4, "prefill_tokens": 64, "max_context": 512, **options})


def request(name: str, tokens: list[int], *, seed: int = 0, turn: int = 0, **sampling: Any) -> Request:
    """A greedy request unless told otherwise."""
    return request_of(f"{name}/{turn}", name, tokens, seed, Sampling(**{"temperature": 0.0, **sampling}))


def run(engine: TorchEngine, requests: Iterable[Request] = ()) -> dict[str, Completion]:
    """Add the requests, step until nothing is left, return the completions by trajectory."""
    for item in requests:
        engine.add(item)
    done = {}
    while engine.has_work:
        done.update({c.id.split("/")[0]: c for c in engine.step()})
    return done


def prepare(engine: TorchEngine, version: int, tensors: Mapping[str, Any]) -> str:
    """Bring weights to the engine as a run does, through a store; returns the checksum it echoes."""
    store = MemoryStore(bucket_mb=0.125)
    store.push(version, tensors)
    return engine.prepare(lambda into: store.pull(version, into)).checksum


def update(engine: TorchEngine, version: int, model: Any) -> None:
    prepare(engine, version, model.state_dict())
    engine.commit(version)


def tokens_of(completion: Completion) -> list[int]:
    return [token for span in completion.spans for token in span.tokens.tolist()]


def raw_logprobs(model: Any, context: list[int], answer: list[int]) -> torch.Tensor:
    """Of the answer's tokens after the context, by one plain forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([context + answer])).logits[0, len(context) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]


def assert_raw_logprobs(model: Any, context: list[int], span: Span) -> None:
    torch.testing.assert_close(
        torch.tensor(span.raw_logprobs), raw_logprobs(model, context, span.tokens.tolist()), atol=1e-4, rtol=0
    )


@dataclass
class Agreement:
    """Counts what was compared with `generate`, so that ties are reported rather than hidden."""

    tokens: int = 0
    ties: int = 0

    def check(self, model: Any, context: list[int], completion: Completion) -> None:
        """The same tokens as `generate`, up to a position where the reference itself could not decide."""
        answer = tokens_of(completion)
        reference = model.generate(
            torch.tensor([context]),
            attention_mask=torch.ones(1, len(context), dtype=torch.long),
            do_sample=False,
            max_new_tokens=len(answer),
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        expected = reference.sequences[0, len(context) :].tolist()
        self.tokens += len(answer)
        if answer != expected:
            place = next(i for i, pair in enumerate(zip(answer, expected, strict=True)) if pair[0] != pair[1])
            first, second = reference.logits[place][0].topk(2).values.tolist()
            assert first - second < TIE, f"token {place}: {answer[place]}, but generate says {expected[place]}"
            self.ties += 1
        assert_raw_logprobs(model, context, completion.spans[0])
