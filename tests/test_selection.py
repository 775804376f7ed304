"""Admission and consumption alone: numbers in, choices out, checked against what they promise."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.rollout.staleness import GroupInLine, SampleBuffer, Selection, StalenessBound, select
from rollweave.tasks import Task
from rollweave.trajectory import Group, Trajectory


def running(id: int, version: int, expendable: bool = False) -> GroupInLine:
    return GroupInLine(id, version, complete=False, expendable=expendable)


def complete(id: int, version: int) -> GroupInLine:
    return GroupInLine(id, version, complete=True)


# ---------------------------------------------------------------------------------------------------- the bound


def test_room_is_one_and_alpha_batches_after_an_update_and_alpha_while_training() -> None:
    bound = StalenessBound(alpha=2, groups_per_step=4)
    assert bound.room(next_step=7, engine_version=7) == 12
    assert bound.room(next_step=8, engine_version=7) == 8
    assert StalenessBound(0, 4).room(8, 7) == 0


def test_a_fraction_of_alpha_lets_that_share_of_a_batch_be_one_version_older() -> None:
    bound = StalenessBound(alpha=1.5, groups_per_step=4)
    assert bound.room(7, 7) == 10
    assert bound.keeps([1, 1, 2, 2])
    assert not bound.keeps([1, 2, 2, 2])
    assert not bound.keeps([3, 0, 0, 0])
    assert StalenessBound(0.3, 10).late == 3, "0.3 * 10 is three, whatever floats say"


# ------------------------------------------------------------------------------------------------- the selection


def test_a_group_at_its_limit_is_taken_before_one_that_can_wait() -> None:
    bound = StalenessBound(1, 1)
    chosen = select([complete(3, version=5), complete(9, version=4)], 5, bound)
    assert chosen == Selection([9])


def test_a_running_group_at_its_limit_holds_the_batch_back() -> None:
    bound = StalenessBound(1, 1)
    assert select([complete(3, 5), running(2, 4)], 5, bound) is None
    assert select([complete(3, 5), running(4, 5)], 5, bound) == Selection([3])


def test_an_expendable_group_at_its_limit_is_given_up_instead() -> None:
    bound = StalenessBound(1, 1)
    assert select([complete(3, 5), running(2, 4, expendable=True)], 5, bound) == Selection([3], stale=[2])


def test_start_only_never_waits_and_never_gives_up() -> None:
    bound = StalenessBound(1, 1)
    assert select([complete(3, 5), running(2, 1)], 5, bound, start_only=True) == Selection([3])


def test_surplus_is_given_up_latest_first_and_what_runs_before_what_is_complete() -> None:
    bound = StalenessBound(0, 2)
    line = [complete(0, 5), running(1, 5), complete(2, 5), running(3, 5)]
    assert select(line, 5, bound) == Selection([0, 2], surplus=[3, 1])
    # At alpha 1, more of version 4 were started than steps 4 and 5 could consume: one of three has no place.
    bound = StalenessBound(1, 2)
    line = [complete(0, 4), complete(1, 5), running(7, 4), running(8, 4)]
    assert select(line, 5, bound) is None, "group 7 is not surplus: its place is in this batch"
    line = [complete(0, 4), complete(1, 5), complete(7, 4), running(8, 4)]
    assert select(line, 5, bound) == Selection([0, 7], surplus=[8])


def test_over_issued_groups_are_kept_while_their_expected_survivors_find_a_place() -> None:
    bound = StalenessBound(1, 2)
    line = [complete(0, 5), complete(1, 5), *(running(id, 5) for id in range(2, 12))]
    assert select(line, 5, bound, survivors=0.2) == Selection([0, 1])
    assert select(line, 5, bound, survivors=1.0) == Selection([0, 1], surplus=list(range(11, 3, -1)))


# -------------------------------------------------------------------------------------------------- over many steps


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([0, 0.5, 1, 1.25, 2, 3.7]),
    st.integers(1, 4),
    st.sampled_from(["wait", "requeue", "drop"]),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 10**6),
)
def test_whatever_order_groups_finish_in_the_bound_holds_and_nobody_is_stuck(
    alpha: float, size: int, policy: str, redundancy: float, seed: int
) -> None:
    """The newest may overtake the oldest for many steps, and groups fail now and then."""
    draw = Random(seed)
    bound = StalenessBound(alpha, size)
    line: dict[int, tuple[int, bool]] = {}
    requeued: Counter[int] = Counter()
    number = 0

    def admit(next_step: int, version: int) -> None:
        nonlocal number
        extra = int(size * redundancy) if next_step == version else 0
        while len(line) < max(bound.room(next_step, version), size + extra if extra else 0):
            line[number] = (version, False)
            number += 1

    for step in range(20):
        admit(step, step)
        while True:
            candidates = [
                GroupInLine(id, version, done, policy == "drop" or (policy == "requeue" and requeued[id] < 2))
                for id, (version, done) in line.items()
            ]
            if (chosen := select(candidates, step, bound)) is not None:
                break
            unfinished = sorted(id for id, (_, done) in line.items() if not done)
            assert unfinished, "nothing is left to wait for"
            ended = draw.choice(unfinished[-2:]) if draw.random() < 0.7 else draw.choice(unfinished)
            if draw.random() > 0.1:
                line[ended] = (line[ended][0], True)
            else:
                del line[ended]
            admit(step, step)
        staleness = [step - line.pop(id)[0] for id in chosen.consumed]
        assert len(staleness) == size and bound.keeps(staleness)
        if policy == "wait":
            assert not chosen.stale
        if not redundancy:
            assert not chosen.surplus
        for id in [*chosen.surplus, *chosen.stale]:
            _, done = line.pop(id)
            if id in chosen.stale and policy == "requeue":
                assert not done
                requeued[id] += 1
                line[id] = (step, False)
        admit(step + 1, step)
    assert max(requeued.values(), default=0) <= 2


@pytest.mark.parametrize("alpha", [1, 2])
def test_with_everybody_waited_for_what_is_consumed_is_what_was_admitted(alpha: int) -> None:
    bound = StalenessBound(alpha, 3)
    draw = Random(alpha)
    line: dict[int, bool] = {}
    versions: dict[int, int] = {}
    consumed: list[int] = []
    for step in range(30):
        while len(line) < bound.room(step, step):
            versions[len(versions)] = step
            line[len(versions) - 1] = False
        while (chosen := select([GroupInLine(i, versions[i], d) for i, d in line.items()], step, bound)) is None:
            line[draw.choice([i for i, done in line.items() if not done])] = True
        assert not chosen.surplus and not chosen.stale
        for id in chosen.consumed:
            del line[id]
            consumed.append(id)
    assert sorted([*consumed, *line]) == list(range(len(versions)))


def holding(bound: StalenessBound, versions: list[int]) -> SampleBuffer:
    buffer, task = SampleBuffer(bound), Task("t", "e", 0)
    for id, version in enumerate(versions):
        buffer.put(Group(id, task, [Trajectory(f"{id}", id, 0, task, admitted_version=version)]))
    return buffer


def test_a_step_waits_for_the_groups_that_are_next_however_many_later_ones_are_complete() -> None:
    buffer = holding(StalenessBound(1, 2), [5, 5, 5, 6])
    assert buffer.has_batch_in_order([])
    assert buffer.has_batch_in_order([running(2, 6)])
    assert not buffer.has_batch_in_order([running(9, 4)]), "an older version comes first"
    assert not holding(StalenessBound(1, 2), [5]).has_batch_in_order([running(9, 9)]), "one is not enough"


@given(st.sampled_from([0, 0.5, 1, 1.5, 2]), st.integers(1, 4), st.lists(st.integers(3, 6), max_size=12))
@settings(max_examples=400, deadline=None)
def test_what_is_consumed_in_order_is_older_than_all_that_runs(alpha: float, size: int, versions: list[int]) -> None:
    buffer = holding(StalenessBound(alpha, size), versions)
    under_way = [running(100 + n, version) for n, version in enumerate(versions[::2])]
    if buffer.has_batch_in_order(under_way):
        chosen = buffer.select(6, under_way)
        if chosen is not None:
            assert all((versions[id], id) < (each.version, each.id) for id in chosen.consumed for each in under_way)
