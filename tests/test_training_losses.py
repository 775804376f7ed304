"""Losses, mismatch correction and aggregation against their slow references: values and gradients."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_losses as reference
from reference_losses import Data
from rollweave.config.losses import (
    CISPOLoss,
    DecoupledPPOLoss,
    GSPOLoss,
    KimiLoss,
    MismatchMask,
    MismatchWeight,
    NoMismatch,
    PPOLoss,
    TISLoss,
    TOPRLoss,
)
from rollweave.config.training import TrainingConfig
from rollweave.training.gae import value_loss
from rollweave.training.losses import TokenBatch, correction, k3, objective, token_loss, token_weights, total
from rollweave.training.trainer import learning_rate

number = st.floats(-3, 3, width=32)
# Sums of these never hit a clip's bound exactly: there a derivative is a matter of taste.
log_prob = st.integers(-30, 0).map(lambda n: n / 10 + 0.003)

LOSSES = [
    PPOLoss(clip_high=0.3),
    PPOLoss(dual_clip=1.5),
    PPOLoss(denominator="proximal", dual_clip=3.0, aggregation="sequence", kl_coefficient=0.3, entropy_coefficient=0.1),
    DecoupledPPOLoss(),
    DecoupledPPOLoss(weight_cap=None, clip_low=0.1, aggregation="sequence"),
    DecoupledPPOLoss(weight_cap=1.5),
    TISLoss(),
    TISLoss(weight_low=0.5, weight_high=2.0, denominator="proximal"),
    CISPOLoss(),
    CISPOLoss(unified_mask=True, clip_high=0.4, aggregation="sequence"),
    TOPRLoss(),
    TOPRLoss(positive_weight=0.3, negative_weight=2.0, denominator="proximal"),
    GSPOLoss(),
    GSPOLoss(clip_low=0.3, clip_high=0.5, aggregation="token", denominator="proximal"),
    KimiLoss(),
    KimiLoss(tau=2.0, denominator="proximal", aggregation="sequence"),
]
MISMATCHES = [NoMismatch()] + [
    kind(level=level)
    for kind in (MismatchWeight, MismatchMask)
    for level in ("token", "segment", "geometric", "sequence")
]


@st.composite
def drawn_data(draw: st.DrawFn) -> Data:
    """Ragged trajectories; advantages per trajectory, which is what gspo's definition knows."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))

    def tokens() -> list[list[float]]:
        return [[draw(log_prob) for _ in range(n)] for n in lengths]

    new, advantage = tokens(), [[draw(number)] * n for n in lengths]
    segments = [[draw(st.integers(0, 1)) for _ in range(n)] for n in lengths]
    return Data(new, copy.deepcopy(new), tokens(), tokens(), advantage, [sorted(row) for row in segments])


def flat(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for row in values for value in row], dtype=torch.float64)


def index(values: list[list[int]]) -> torch.Tensor:
    """Numbers that start again in each trajectory, made unique."""
    seen: dict[tuple[int, int], int] = {}
    return torch.tensor([seen.setdefault((t, v), len(seen)) for t, row in enumerate(values) for v in row])


def ours(data: Data, loss: Any, mismatch: Any, ref: list[list[float]], entropy: list[list[float]]) -> tuple[Any, Any]:
    """The value, and its gradient at each token's log-prob."""
    new = flat(data.new).requires_grad_()
    rows = index([[0] * len(row) for row in data.new])
    draws = TokenBatch(new, flat(data.behaviour), flat(data.before), flat(data.advantage), rows)
    factor = correction(draws.before, draws.behaviour, rows, index(data.segments), mismatch)
    terms = token_loss(objective(draws, loss), factor, new, flat(entropy), flat(ref))
    lengths = [len(row) for row in data.new]
    weight = torch.tensor(token_weights(lengths, loss.aggregation), dtype=torch.float64)
    value = total(terms, weight.repeat_interleave(torch.tensor(lengths)), loss)
    value.backward()
    return float(value.detach()), new.grad


def slope(data: Data, t: int, i: int, *rest: Any, width: float = 1e-6) -> float:
    """The derivative at one token's log-prob, by moving it."""
    up, down = copy.deepcopy(data), copy.deepcopy(data)
    up.new[t][i] += width
    down.new[t][i] -= width
    return (reference.loss(up, *rest) - reference.loss(down, *rest)) / (2 * width)


def check(data: Data, loss: Any, mismatch: Any) -> None:
    ref = [[x - 0.1 for x in row] for row in data.behaviour]
    entropy = [[-x for x in row] for row in data.before]
    value, gradient = ours(data, loss, mismatch, ref, entropy)
    assert value == pytest.approx(reference.loss(data, loss, mismatch, ref, entropy), rel=1e-9, abs=1e-9)
    places = [(t, i) for t, row in enumerate(data.new) for i in range(len(row))]
    slopes = [slope(data, t, i, loss, mismatch, ref, entropy) for t, i in places]
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.type)
@settings(max_examples=40, deadline=None)
@given(drawn_data())
def test_every_loss_and_its_gradient_equal_the_reference(loss: Any, data: Data) -> None:
    check(data, loss, NoMismatch())


@pytest.mark.parametrize("mismatch", MISMATCHES, ids=lambda m: f"{m.type}-{getattr(m, 'level', '')}")
@settings(max_examples=60, deadline=None)
@given(drawn_data(), st.sampled_from(LOSSES))
def test_every_mismatch_correction_equals_the_reference(mismatch: Any, data: Data, loss: Any) -> None:
    check(data, loss, mismatch)


@settings(deadline=None)
@given(drawn_data())
def test_gspo_with_an_advantage_per_token_pulls_each_token_by_its_own(data: Data) -> None:
    """Same trajectory ratio for all; where nothing is clipped a token's gradient is -weight x ratio x its advantage."""
    data.advantage = [[float(i - 1) for i in range(len(row))] for row in data.new]
    loss = GSPOLoss(clip_low=1e3, clip_high=1e9, aggregation="token")
    zeros = [[0.0] * len(row) for row in data.new]
    _, gradient = ours(data, loss, NoMismatch(), zeros, zeros)
    expected = []
    for t, row in enumerate(data.new):
        ratio = math.exp(sum(n - b for n, b in zip(row, data.behaviour[t], strict=True)) / len(row))
        expected += [-ratio * a / sum(map(len, data.new)) for a in data.advantage[t]]
    assert gradient.tolist() == pytest.approx(expected)


def draws(new: torch.Tensor, old: list[float], advantage: list[float]) -> TokenBatch:
    old_ = torch.tensor(old, dtype=new.dtype)
    return TokenBatch(new, old_, old_, torch.tensor(advantage, dtype=new.dtype), torch.arange(len(old)))


@settings(deadline=None)
@given(number, number, number, st.sampled_from([None, 2.0]))
def test_clipped_tokens_are_exactly_those_without_gradient(
    new: float, old: float, advantage: float, dual: float | None
) -> None:
    point = torch.tensor([new], dtype=torch.float64, requires_grad=True)
    found = objective(draws(point, [old], [advantage]), PPOLoss(dual_clip=dual))
    found.loss.sum().backward()
    assert point.grad is not None
    if advantage != 0:
        assert bool(found.clipped) == (float(point.grad) == 0.0)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.type)
def test_a_huge_ratio_has_a_finite_loss_and_gradient(loss: Any) -> None:
    new = torch.tensor([0.0, 0.0], requires_grad=True)
    found = objective(draws(new, [-500.0, -500.0], [1.0, -1.0]), loss)
    found.loss.sum().backward()
    assert new.grad is not None and bool(torch.isfinite(new.grad).all()) and bool(torch.isfinite(found.loss).all())


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.type)
def test_on_fresh_data_every_loss_is_the_policy_gradient(loss: Any) -> None:
    """All log-probs equal: every ratio is 1, and what is left is the advantage (weighted topr weighs it)."""
    new = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    found = objective(draws(new, new.tolist(), [2.0, -1.0, 0.0]), loss)
    found.loss.sum().backward()
    good, bad = (loss.positive_weight, loss.negative_weight) if isinstance(loss, TOPRLoss) else (1.0, 1.0)
    assert new.grad is not None and new.grad.tolist() == pytest.approx([-2.0 * good, 1.0 * bad, 0.0])
    assert found.ratio.tolist() == [1.0, 1.0, 1.0] and not bool(found.clipped.any())


@settings(deadline=None)
@given(number, number, number, st.sampled_from([None, 0.2]))
def test_the_value_loss_equals_the_reference(new: float, old: float, returns: float, limit: float | None) -> None:
    one, two, three = (torch.tensor([x], dtype=torch.float64) for x in (new, old, returns))
    expected = reference.value_loss(new, old, returns, limit)
    assert float(value_loss(one, two, three, limit)) == pytest.approx(expected, abs=1e-12)


def test_k3_is_an_unbiased_estimate_of_the_kl() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = float((p * (p / q).log()).sum())
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(exact, abs=1e-6)


def test_schedules() -> None:
    def rate(step: int, kind: str) -> float:
        falls = {"schedule": kind, "warmup_steps": 4, "steps": 14, "final_learning_rate_share": 0.1}
        return learning_rate(step, TrainingConfig.model_validate({"learning_rate": 2.0, **falls}))

    assert [rate(step, "linear") for step in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rate(13, "constant") == 2.0
    assert rate(13, "linear") == pytest.approx(0.2) and rate(99, "linear") == pytest.approx(0.2)
    middle = 4 + 9 / 2
    assert rate(middle, "cosine") == pytest.approx(2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2))  # type: ignore[arg-type]
    assert rate(13, "cosine") == pytest.approx(0.2)
