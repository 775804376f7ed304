"""Time per phase and idle shares, on a clock that the test moves."""

from __future__ import annotations

import pytest

from rollweave.observability import catalogue
from rollweave.observability.phases import BusyTime, IdleMeter, StepClock


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_step_is_split_into_its_phases_and_the_next_starts_empty():
    now = Clock()
    clock = StepClock(now)
    with clock.phase("get_batch"):
        now.time += 2
    with clock.phase("train"):
        now.time += 5
    now.time += 1
    clock.add("recompute", 0.5)
    times = clock.finish()
    assert times["time/step"] == 8
    assert times["time/get_batch"] == 2
    assert times["time/train"] == 5
    assert times["time/recompute"] == 0.5
    assert times["time/sync_exposed"] == 0  # every phase, zero or not: plots stay dense
    assert set(clock.finish().values()) == {0.0}
    assert all(catalogue.find(key) for key in times)


def test_a_phase_that_crosses_a_steps_end_is_split_there():
    now = Clock()
    clock = StepClock(now)
    with clock.phase("eval"):
        now.time += 3
        assert clock.finish()["time/eval"] == 3
        now.time += 4
    assert clock.finish()["time/eval"] == 4


def test_overlapping_phases_of_two_names_both_count():
    now = Clock()
    clock = StepClock(now)
    with clock.phase("eval"):
        now.time += 1
        with clock.phase("train"):
            now.time += 2
        now.time += 1
    times = clock.finish()
    assert (times["time/eval"], times["time/train"]) == (4, 2)


def test_a_phase_counts_when_its_work_raises():
    now = Clock()
    clock = StepClock(now)
    with pytest.raises(ValueError), clock.phase("train"):
        now.time += 2
        raise ValueError
    assert clock.finish()["time/train"] == 2


def test_overlapping_work_makes_a_pool_busy_once():
    now = Clock()
    pool = BusyTime(now)
    with pool.busy():
        now.time += 1
        with pool.busy():
            now.time += 2
        assert pool.seconds() == 3  # also in the middle of it
    now.time += 10
    assert pool.seconds() == 3


def test_idle_share_is_of_the_time_between_samples():
    now = Clock()
    meter = IdleMeter(now, busy_seconds=50.0)
    now.time += 10
    assert meter.sample(57.0) == pytest.approx(0.3)
    now.time += 10
    assert meter.sample(57.0) == 1.0
    assert meter.sample(57.0) == 0.0  # no time has passed: nothing was wasted
    now.time += 1
    assert meter.sample(59.0) == 0.0  # a counter that runs ahead of the clock is not negative idleness


def test_a_restarted_engine_counts_from_zero():
    now = Clock()
    meter = IdleMeter(now, busy_seconds=500.0)
    now.time += 10
    assert meter.sample(4.0) == pytest.approx(0.6)


def test_idle_share_of_a_pool_of_several_workers():
    now = Clock()
    meter = IdleMeter(now)
    now.time += 10
    assert meter.sample(10.0, workers=4) == pytest.approx(0.75)
