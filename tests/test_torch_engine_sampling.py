"""Sampling: the right distribution, the right log-probs, and nothing but (seed, place, logits) decides."""

from __future__ import annotations

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from rollweave.engines.protocol import Sampling
from rollweave.engines.torch.sampling import NUCLEUS_GUESS, _invert, draw, uniforms
from rollweave.trajectory import Transform
from torch_engine_reference import (
    engine_of,
    random_model,
    random_prompt,
    raw_logprobs,
    request,
    run,
    tokens_of,
    update,
)

TRANSFORMS = [
    Sampling(),
    Sampling(temperature=0.5),
    Sampling(temperature=2.0),
    Sampling(top_k=5),
    Sampling(top_p=0.8),
    Sampling(top_k=1000, top_p=0.6),
    Sampling(temperature=1.5, top_p=0.7, top_k=12),
]


def reference(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The probabilities `transformers` would draw from."""
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits[None])
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1.0:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores[0].softmax(-1)


@pytest.mark.parametrize("sampling", TRANSFORMS, ids=str)
def test_draws_follow_the_transformed_distribution(sampling: Sampling) -> None:
    count, vocabulary = 20_000, 40
    logits = 2.0 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(1))
    expected = reference(logits, sampling)
    seeds, places = [i // 10 for i in range(count)], [i % 10 for i in range(count)]
    draws = draw(logits.expand(count, -1), [sampling] * count, seeds, places)
    counts = torch.bincount(torch.tensor(draws.tokens), minlength=vocabulary).double()
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    wanted = expected[kept].double() * count
    chi_square = float(((counts[kept] - wanted) ** 2 / wanted).sum())
    freedom = int(kept.sum()) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("sampling", TRANSFORMS, ids=str)
def test_logprobs_are_raw_and_of_the_distribution_drawn_from(sampling: Sampling) -> None:
    logits = 3.0 * torch.randn(50, 300, generator=torch.Generator().manual_seed(2))
    draws = draw(logits, [sampling] * 50, list(range(50)), [0] * 50)
    for row in range(50):
        token = draws.tokens[row]
        assert draws.raw[row] == pytest.approx(float(logits[row].log_softmax(-1)[token]), abs=1e-5)
        assert draws.behaviour[row] == pytest.approx(float(reference(logits[row], sampling)[token].log()), abs=1e-5)


def test_a_nucleus_larger_than_the_first_guess() -> None:
    """Nearly flat logits over a large vocabulary: the kept set has far more tokens than are looked at first."""
    logits = 0.01 * torch.randn(20, 8 * NUCLEUS_GUESS, generator=torch.Generator().manual_seed(3))
    sampling = Sampling(top_p=0.5)
    draws = draw(logits, [sampling] * 20, list(range(20)), [0] * 20)
    expected = [float(reference(logits[i], sampling)[draws.tokens[i]].log()) for i in range(20)]
    assert draws.behaviour == pytest.approx(expected, abs=1e-3)


def test_greedy_is_a_point_mass_and_mixes_with_sampling() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(4))
    kinds = [Sampling(temperature=0.0), Sampling(), Sampling(top_k=3)] * 2
    mixed = draw(logits, kinds, list(range(6)), [3] * 6)
    for row, kind in enumerate(kinds):
        alone = draw(logits[row : row + 1], [kind], [row], [3])
        assert (mixed.tokens[row], mixed.behaviour[row]) == (alone.tokens[0], pytest.approx(alone.behaviour[0]))
    for row in (0, 3):
        assert (mixed.tokens[row], mixed.behaviour[row]) == (int(logits[row].argmax()), 0.0)
        assert mixed.raw[row] == pytest.approx(float(logits[row].log_softmax(-1).max()), abs=1e-5)


def test_uniforms_are_uniform_and_independent_of_each_other() -> None:
    seeds, places = [s for s in range(200) for _ in range(100)], list(range(100)) * 200
    numbers = torch.from_numpy(uniforms(seeds, places)).view(200, 100)
    assert float(numbers.min()) >= 0.0 and float(numbers.max()) < 1.0
    counts = torch.histc(numbers, bins=20, min=0.0, max=1.0)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 19 + 5 * 38**0.5
    for left, right in ((numbers[:-1], numbers[1:]), (numbers[:, :-1], numbers[:, 1:])):
        correlation = torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.03
    assert uniforms([-1, 2**63 - 1], [0, 10**6]).shape == (2,)


def test_the_ends_of_the_distribution() -> None:
    """Neither the smallest nor the largest uniform number draws a token of weight 0 or one beyond the last."""
    largest = 1.0 - 2.0**-23
    totals = torch.rand(1000, 1, generator=torch.Generator().manual_seed(5)) * 100 + 1e-3
    cumulative = torch.cat([torch.zeros(1000, 1), 0.5 * totals, totals, totals], dim=1)  # weights 0, t/2, t/2, 0
    assert set(_invert(cumulative, torch.zeros(1000)).flatten().tolist()) == {1}
    assert set(_invert(cumulative, torch.full((1000,), largest)).flatten().tolist()) == {2}


def test_the_batch_does_not_change_what_is_drawn() -> None:
    """Each trajectory alone, all together, and through two slots with evictions: same seeds, same tokens."""
    model = random_model("qwen3")
    kinds = [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3, "top_k": 20}]
    requests = [
        request(f"t{i}", random_prompt(i, 8 + 5 * i), seed=1000 + i, max_tokens=25, **kinds[i % 3]) for i in range(9)
    ]
    alone = {r.trajectory: run(engine_of(model), [r])[r.trajectory] for r in requests}
    together = run(engine_of(model, slots=9), requests)
    crowded = run(engine_of(model, slots=2, prefill_tokens=5), reversed(requests))
    differing = sum(tokens_of(alone[name]) != tokens_of(other[name]) for name in alone for other in (together, crowded))
    print(f"batch invariance: {differing} of 18 sampled answers differ (a uniform number on a boundary)")
    assert differing == 0
    assert len({tuple(tokens_of(c)) for c in alone.values()}) == 9


def test_spans_carry_everything_training_needs() -> None:
    model, prompt = random_model("llama"), random_prompt(0, 10)
    sampling = {"temperature": 0.8, "top_p": 0.95, "top_k": 30, "max_tokens": 15}
    engine = engine_of(model)
    update(engine, 4, model)
    (span,) = run(engine, [request("a", prompt, **sampling)])["a"].spans
    assert span.problem() is None
    assert (span.version, span.transform) == (4, Transform(0.8, 0.95, 30))
    expected = raw_logprobs(model, prompt, span.tokens.tolist())
    torch.testing.assert_close(torch.tensor(span.raw_logprobs), expected, atol=1e-4, rtol=0)
