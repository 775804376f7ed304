"""Advantages, losses and aggregation against their slow references."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference_losses as reference
from rollweave.config.training import GRPOAdvantage, PPOLoss
from rollweave.training.advantages import batch_advantages, group_advantages, zero_share
from rollweave.training.losses import k3, ppo_loss, token_weights, total
from rollweave.training.schedule import learning_rate
from training_data import batch

number = st.floats(-3, 3, width=32)
rewards = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=1, max_size=9)


@given(rewards, st.sampled_from(["std", "none"]))
def test_group_advantages_equal_the_reference(values: list[float], normalise: str) -> None:
    found = group_advantages(values, GRPOAdvantage(normalise=normalise))
    assert found == pytest.approx(reference.advantages(values, normalise), abs=1e-6)
    assert sum(found) == pytest.approx(0, abs=1e-6)


def test_members_with_the_same_reward_have_no_advantage_at_all() -> None:
    assert group_advantages([0.1, 0.1, 0.1], GRPOAdvantage()) == [0.0, 0.0, 0.0]


def test_a_batchs_advantages_are_per_group_and_over_the_members_present() -> None:
    made = batch(groups=2, size=3)
    for member, reward in zip(made.trajectories(), [1.0, 0.0, 0.5, 2.0, 2.0, 2.0], strict=True):
        member.rewards = {"r": reward}
    del made.groups[0].members[2]
    assert batch_advantages(made, GRPOAdvantage(normalise="none")) == [0.5, -0.5, 0.0, 0.0, 0.0]
    assert zero_share(made) == 0.5


@st.composite
def ragged(draw: st.DrawFn) -> list[int]:
    return draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))


@given(
    st.data(),
    ragged(),
    st.sampled_from([None, 1.5, 3.0]),
    st.sampled_from(["token", "sequence"]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.1]),
)
def test_the_loss_equals_the_reference(
    data: st.DataObject, lengths: list[int], dual: float | None, aggregation: str, kl: float, entropy: float
) -> None:
    def draw() -> list[list[float]]:
        return [data.draw(st.lists(number, min_size=n, max_size=n)) for n in lengths]

    new, old, ref, entropies = draw(), draw(), draw(), draw()
    advantage = data.draw(st.lists(number, min_size=len(lengths), max_size=len(lengths)))
    config = PPOLoss(
        clip_low=0.2,
        clip_high=0.3,
        dual_clip=dual,
        aggregation=aggregation,
        kl_coefficient=kl,
        entropy_coefficient=entropy,
    )

    def flat(values: list[list[float]]) -> torch.Tensor:
        return torch.tensor([v for row in values for v in row], dtype=torch.float64)

    spread = torch.tensor(lengths)
    loss = ppo_loss(
        flat(new),
        flat(old),
        torch.tensor(advantage, dtype=torch.float64).repeat_interleave(spread),
        flat(entropies),
        flat(ref),
        config,
    )
    weight = torch.tensor(token_weights(lengths, aggregation), dtype=torch.float64).repeat_interleave(spread)
    expected = reference.ppo(
        new,
        old,
        ref,
        entropies,
        advantage,
        low=0.2,
        high=0.3,
        dual=dual,
        kl_coefficient=kl,
        entropy_coefficient=entropy,
        aggregation=aggregation,
    )
    assert float(total(loss, weight, config)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(number, number, number, st.sampled_from([None, 2.0]))
def test_clipped_tokens_are_exactly_those_without_gradient(
    new: float, old: float, advantage: float, dual: float | None
) -> None:
    point = torch.tensor([new], dtype=torch.float64, requires_grad=True)
    constant = torch.tensor([advantage], dtype=torch.float64)
    config = PPOLoss(dual_clip=dual)
    loss = ppo_loss(point, torch.tensor([old], dtype=torch.float64), constant, torch.zeros(1), None, config)
    loss.policy.sum().backward()
    assert point.grad is not None
    if advantage != 0:
        assert bool(loss.clipped) == (float(point.grad) == 0.0)


def test_a_huge_ratio_has_a_finite_loss_and_gradient() -> None:
    new = torch.tensor([0.0, 0.0], requires_grad=True)
    loss = ppo_loss(new, torch.tensor([-500.0, -500.0]), torch.tensor([1.0, -1.0]), torch.zeros(2), None, PPOLoss())
    loss.policy.sum().backward()
    assert new.grad is not None and bool(torch.isfinite(new.grad).all()) and bool(torch.isfinite(loss.policy).all())


def test_k3_is_an_unbiased_estimate_of_the_kl() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = float((p * (p / q).log()).sum())
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(exact, abs=1e-6)


def test_schedules() -> None:
    def rate(step: int, kind: str) -> float:
        return learning_rate(step, peak=2.0, kind=kind, warmup=4, total=14, final_share=0.1)  # type: ignore[arg-type]

    assert [rate(step, "linear") for step in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rate(13, "constant") == 2.0
    assert rate(13, "linear") == pytest.approx(0.2) and rate(99, "linear") == pytest.approx(0.2)
    middle = 4 + 9 / 2
    assert rate(middle, "cosine") == pytest.approx(2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2))  # type: ignore[arg-type]
    assert rate(13, "cosine") == pytest.approx(0.2)
