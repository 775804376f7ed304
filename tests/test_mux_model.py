"""The closed forms of a group against the same group run phase by phase."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mux_events import RoundRobin, Shop, fifo, groups, shop_of

from rollweave.mux.model.group import CoGroup, phases_at
from rollweave.mux.model.job import JobProfile, MuxJob, ProfileError
from rollweave.mux.model.period import best_order, fifo_bound, fifo_means, fifo_worst, max_plus_period, meta_period
from rollweave.mux.model.state import ClusterState
from rollweave.seeds import generator

FEW = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize(
    "wrong",
    [{"t_roll": 0}, {"t_train": -1}, {"n_roll": 0}, {"n_train": 0}, {"dp_eff": 1.5}, {"t_roll": math.nan}],
)
def test_a_profile_nobody_could_schedule_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ProfileError, match=str(next(iter(wrong)))):
        JobProfile(**{"t_roll": 100, "t_train": 50, **wrong})  # type: ignore[arg-type]


def test_an_slo_below_one_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"slo=0\.9"):
        MuxJob("7", JobProfile(100, 50), 0.9, 10)


def test_train_time_scales_with_the_width_of_the_group() -> None:
    profile = JobProfile(100, 60, n_train=2, t_sync=3)
    assert profile.train_at(2) == 63 and profile.train_at(4) == 33 and profile.train_at(1) == 123
    assert JobProfile(100, 60, dp_eff=0.5).train_at(2) == 60


def test_group_sums() -> None:
    group = CoGroup(1, (0,))
    for name, roll, train, node in (("a", 156, 102, 0), ("b", 100, 30, 0), ("c", 80, 20, 1)):
        group.add(name, phases_at(JobProfile(roll, train, mem_roll=10), 1), (node,))
    assert group.t_cycle == 258 and group.t_load == 256 and not group.saturated
    assert group.node_mem == {0: 20, 1: 10} and ClusterState().group_cost(group) == pytest.approx(71.84)
    group.remove("a")
    assert group.t_cycle == 130 and group.t_load == 100
    group.add("d", phases_at(JobProfile(40, 30), 1), (0,))
    assert group.t_cycle == 130 and group.t_load == 140 and group.saturated


def test_a_job_alone_pays_no_switches() -> None:
    group = CoGroup(1, (0,))
    group.add("a", phases_at(JobProfile(100, 50, switch_roll=2, switch_train=5), 1), (0,))
    assert meta_period(group) == 150
    group.add("b", phases_at(JobProfile(10, 10, switch_roll=2, switch_train=5), 1), (1,))
    assert meta_period(group) == 157


@FEW
@given(groups(), st.randoms(use_true_random=False))
def test_without_gangs_the_period_of_any_order_is_the_closed_form(group: CoGroup, draw: object) -> None:
    order = list(range(len(group.pins)))
    draw.shuffle(order)  # type: ignore[attr-defined]
    assert RoundRobin(**shop_of(group), order=order).period(40) == pytest.approx(meta_period(group))  # type: ignore[arg-type]


@FEW
@given(groups(most=4, gangs=True))
def test_with_gangs_the_recursion_is_the_event_simulation(group: CoGroup) -> None:
    events = RoundRobin(**shop_of(group), order=range(len(group.pins))).period(48)  # type: ignore[arg-type]
    assert max_plus_period(group, tuple(group.pins), 48) == pytest.approx(events)
    assert events >= max(group.t_cycle, group.t_load) - 1e-9


@FEW
@given(groups(most=4, gangs=True))
def test_the_order_search_never_loses_against_arrival_order(group: CoGroup) -> None:
    found = max_plus_period(group, best_order(group))
    assert found <= max_plus_period(group, tuple(group.pins)) + 1e-9
    assert sorted(best_order(group)) == sorted(group.pins)


def test_the_order_search_finds_what_arrival_order_misses() -> None:
    group = CoGroup(1, (0,))
    for name, roll, train, nodes in (("a", 50, 10, (0,)), ("b", 40, 10, (0, 1)), ("c", 50, 10, (1,))):
        group.add(name, phases_at(JobProfile(roll, train, n_roll=len(nodes)), 1), nodes)
    group.add("d", phases_at(JobProfile(40, 10, n_roll=2), 1), (0, 1))
    assert max_plus_period(group, best_order(group)) < 0.85 * max_plus_period(group, ("a", "b", "c", "d"))


@FEW
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=2, max_size=5), st.data())
def test_theorem_1_repeating_a_job_never_helps_a_group_that_is_not_over_saturated(
    phases: list[tuple[int, int]], data: st.DataObject
) -> None:
    """One rollout and one train node: with every job once, U_R + U_T is at its best."""
    rolls, trains = [roll for roll, _ in phases], [train for _, train in phases]
    cycle = max(roll + train for roll, train in phases)
    if cycle < max(sum(rolls), sum(trains)):
        return
    once = (sum(rolls) + sum(trains)) / cycle
    again = data.draw(st.integers(0, len(phases) - 1))
    group = CoGroup(1, (0,))
    for number, (roll, train) in enumerate(phases):
        group.add(f"{number}", phases_at(JobProfile(roll, train), 1), (0,))
    assert meta_period(group) == cycle
    other = (again + 1) % len(phases)
    order = [other, *(number for number in range(len(phases)) if number != other)]
    order.insert(data.draw(st.integers(1, len(phases))), again)
    robin = RoundRobin(
        [float(roll) for roll in rolls], [float(train) for train in trains], [(0,)] * len(rolls), order=order
    )
    twice = (sum(rolls) + sum(trains) + sum(phases[again])) / robin.period(40)
    assert twice <= once + 1e-9


@FEW
@given(groups(), st.integers(0, 10**6))
def test_no_fifo_iteration_exceeds_its_worst_case_when_phases_are_shorter_than_planned(
    group: CoGroup, seed: int
) -> None:
    draw = generator(seed, "durations")
    shop = Shop(**shop_of(group))  # type: ignore[arg-type]
    rolls, trains = list(shop.rolls), list(shop.trains)
    shop.duration = lambda job, training: draw.uniform(0.2, 1.0) * (trains if training else rolls)[job]
    ended = fifo(shop, [0.0] * len(rolls), 20)
    for name, times in zip(group.pins, ended, strict=True):
        gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
        assert max(gaps) <= fifo_worst(group, name) + 1e-9


@FEW
@given(groups(), st.integers(0, 10**6))
def test_any_number_of_fifo_iterations_keeps_the_mean_bound_from_any_moment_on(group: CoGroup, seed: int) -> None:
    draw = generator(seed, "starts")
    starts = [draw.uniform(0, 200) for _ in group.pins]
    ended = fifo(Shop(**shop_of(group)), starts, 25)  # type: ignore[arg-type]
    for name, start, times in zip(group.pins, starts, ended, strict=True):
        bound, stamps = fifo_bound(group, name), [start, *times]
        assert bound.per_iter <= fifo_worst(group, name) + 1e-9
        for first in range(0, 20, 3):
            for last in range(first + 1, len(stamps), 4):
                assert stamps[last] - stamps[first] <= bound.within(last - first) + 1e-6


def test_a_slow_partner_cannot_be_ahead_every_time() -> None:
    group = CoGroup(1, (0,))
    group.add("short", phases_at(JobProfile(80, 20), 1), (0,))
    group.add("long", phases_at(JobProfile(800, 100), 1), (1,))
    assert fifo_worst(group, "short") == 200
    assert fifo_bound(group, "short").per_iter == pytest.approx(100 / (1 - 100 / 900))


@FEW
@given(groups(switches=False))
def test_fifo_means_are_those_of_the_event_simulation(group: CoGroup) -> None:
    ended = fifo(Shop(**shop_of(group)), [0.0] * len(group.pins), 150)  # type: ignore[arg-type]
    for name, times in zip(group.pins, ended, strict=True):
        settled = [time for time in times if time >= times[-1] / 3]
        mean = (settled[-1] - settled[0]) / (len(settled) - 1)
        assert fifo_means(group)[name] == pytest.approx(mean, rel=0.08)
