"""Advantages against their slow references, and where rewards fall due."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_losses as reference
from rollweave.config.training import (
    GAEAdvantage,
    GiGPOAdvantage,
    GRPOAdvantage,
    ReinforcePlusAdvantage,
    RLOOAdvantage,
)
from rollweave.training.advantages import (
    batch_advantages,
    gigpo,
    token_rewards,
    trajectory_advantages,
    turn_returns,
    zero_share,
)
from rollweave.training.gae import credit, explained_variance, gae
from rollweave.training.packing import rows_of
from rollweave.trajectory import Group, Trajectory, Transform, token_ids
from spans import span_of
from training_data import TASK, batch

reward = st.floats(-10, 10).map(lambda x: round(x, 3))
rewards = st.lists(reward, min_size=1, max_size=9)
groups = st.lists(rewards, min_size=1, max_size=4)


@settings(deadline=None)
@given(rewards, st.sampled_from(["std", "none"]))
def test_group_advantages_equal_the_reference(values: list[float], normalise: str) -> None:
    found = trajectory_advantages([values], GRPOAdvantage(normalise=normalise))
    assert found == pytest.approx(reference.advantages(values, normalise), abs=1e-6)
    assert sum(found) == pytest.approx(0, abs=1e-6)


@settings(deadline=None)
@given(groups)
def test_leave_one_out_equals_the_reference(values: list[list[float]]) -> None:
    expected = [a for group in values for a in reference.leave_one_out(group)]
    assert trajectory_advantages(values, RLOOAdvantage()) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(groups, st.sampled_from(["batch", "group"]))
def test_reinforce_plus_equals_the_reference(values: list[list[float]], baseline: str) -> None:
    found = trajectory_advantages(values, ReinforcePlusAdvantage(baseline=baseline))
    assert found == pytest.approx(reference.reinforce_plus(values, baseline), abs=1e-6)


@pytest.mark.parametrize(
    "config", [GRPOAdvantage(), RLOOAdvantage(), ReinforcePlusAdvantage(), ReinforcePlusAdvantage(baseline="group")]
)
def test_members_with_the_same_reward_have_no_advantage_at_all(config: GRPOAdvantage) -> None:
    assert trajectory_advantages([[0.1, 0.1, 0.1]], config) == [0.0, 0.0, 0.0]
    if config.needs_group:
        assert trajectory_advantages([[0.1, 0.1, 0.1], [1.0, 0.0]], config)[:3] == [0.0, 0.0, 0.0]


def test_a_batchs_advantages_are_per_group_and_over_the_members_present() -> None:
    made = batch(groups=2, size=3)
    for member, value in zip(made.trajectories(), [1.0, 0.0, 0.5, 2.0, 2.0, 2.0], strict=True):
        member.rewards = {"r": value}
    del made.groups[0].members[2]
    found = batch_advantages(made, GRPOAdvantage(normalise="none"))
    assert [set(tokens) for tokens in found] == [{0.5}, {-0.5}, {0.0}, {0.0}, {0.0}]
    assert [len(tokens) for tokens in found] == [t.sampled_tokens for t in made.trajectories()]
    assert zero_share(made) == 0.5


# ---------------------------------------------------------------------------------------------- turn by turn


def episode(member: int, seen: list[str], earned: list[float], answers: list[int], bonus: float = 0.0) -> Trajectory:
    """A turn per observation (its text is its tokens), each answered by so many tokens."""
    made = Trajectory(f"m{member}", 0, member, TASK, rewards={"environment": sum(earned), "bonus": bonus})
    for text, value, length in zip(seen, earned, answers, strict=True):
        made.observe(token_ids(text.encode()))
        if length:
            made.answer([span_of([1] * length, [0.0] * length, [0.0] * length, 0, Transform())], "", "stop")
        made.turns[-1].reward = value
    return made


def test_rewards_stand_at_the_last_token_of_their_turn_and_the_rest_at_the_end() -> None:
    made = episode(0, ["a", "b", "c", "d"], [1.0, 2.0, 4.0, 8.0], [2, 0, 3, 0], bonus=16.0)
    assert token_rewards(made) == [0.0, 1.0, 0.0, 0.0, 2.0 + 4.0 + 8.0 + 16.0]
    assert turn_returns(made, 0.5) == [1 + 0.5 * (2 + 0.5 * (4 + 0.5 * 24)), 2 + 0.5 * (4 + 0.5 * 24), 4 + 12, 24]


@settings(deadline=None)
@given(st.lists(st.tuples(reward, st.integers(0, 3)), min_size=1, max_size=6), reward)
def test_no_reward_is_lost_or_doubled(turns: list[tuple[float, int]], bonus: float) -> None:
    turns.append((1.0, 1))
    made = episode(0, ["x"] * len(turns), [r for r, _ in turns], [n for _, n in turns], bonus)
    assert sum(token_rewards(made)) == pytest.approx(made.reward, abs=1e-9)
    assert len(token_rewards(made)) == made.sampled_tokens
    assert turn_returns(made, 1.0)[0] == pytest.approx(made.reward, abs=1e-9)


def random_group(rng: random.Random) -> list[Trajectory]:
    members = []
    for member in range(rng.randint(1, 4)):
        n = rng.randint(1, 4)
        seen = [rng.choice("ab") for _ in range(n)]
        members.append(
            episode(member, seen, [round(rng.uniform(-1, 1), 2) for _ in seen], [rng.randint(1, 3) for _ in seen])
        )
    return members


@settings(deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(["std", "none"]),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_gigpo_equals_the_reference(rng: random.Random, normalise: str, gamma: float, omega: float) -> None:
    members = random_group(rng)
    found = gigpo(Group(0, TASK, members), GiGPOAdvantage(normalise=normalise, gamma=gamma, omega=omega))
    seen = [[bytes(turn.observation.tokens.tolist()).decode() for turn in member.turns] for member in members]
    turns = reference.gigpo(
        seen, [[turn.reward for turn in member.turns] for member in members], normalise, gamma, omega
    )
    for member, tokens, per_turn in zip(members, found, turns, strict=True):
        spread = [a for turn, a in zip(member.turns, per_turn, strict=True) for _ in turn.answer[0].tokens]
        assert tokens == pytest.approx(spread, abs=1e-5)


def test_gigpo_tells_turns_of_one_episode_apart_by_what_they_led_to() -> None:
    """Both members met `fork`; one turned right there. Turns that are not shared get the episode's part only."""
    good = episode(0, ["start", "fork", "gold"], [0.0, 0.0, 1.0], [1, 1, 1])
    bad = episode(1, ["start", "fork", "pit"], [0.0, 0.0, 0.0], [1, 1, 1])
    won, lost = gigpo(Group(0, TASK, [good, bad]), GiGPOAdvantage(normalise="none", gamma=1.0, omega=1.0))
    assert won == [1.0, 1.0, 0.5] and lost == [-1.0, -1.0, -0.5]


@settings(deadline=None)
@given(
    st.lists(st.tuples(reward, reward), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.sampled_from([0.0, 0.95, 1.0]),
)
def test_gae_equals_the_double_sum(steps: list[tuple[float, float]], gamma: float, lam: float) -> None:
    earned, values = [r for r, _ in steps], [v for _, v in steps]
    assert gae(earned, values, gamma, lam) == pytest.approx(reference.gae(earned, values, gamma, lam), abs=1e-6)


def test_whitened_advantages_have_mean_0_and_deviation_1_over_all_tokens() -> None:
    data = batch()
    rows = rows_of(data)
    for row in rows:
        row.values = [0.5] * len(row.columns)
    credit(rows, data, GAEAdvantage(normalise="std"))
    assert [len(row.advantage) for row in rows] == [len(row.columns) for row in rows]
    found = [a for row in rows for a in row.advantage]
    assert sum(found) == pytest.approx(0, abs=1e-9)
    assert sum(a * a for a in found) / len(found) == pytest.approx(1, abs=1e-4)


def test_explained_variance() -> None:
    assert explained_variance([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert explained_variance([7.0, 7.0, 7.0], [1.0, 2.0, 3.0]) == pytest.approx(0.0)
    assert explained_variance([3.0, 2.0, 1.0], [1.0, 2.0, 3.0]) == pytest.approx(-3.0)
    assert explained_variance([0.0, 1.0], [5.0, 5.0]) == 0.0
