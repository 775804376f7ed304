"""The bench of the control plane runs, and counts what it plays."""

from __future__ import annotations

from bench.control import pingpong, plane
from bench.control.__main__ import measure


def test_it_measures_both_and_says_whether_the_bar_was_met() -> None:
    row = measure(64, 1)
    assert row["turns_per_second"] > 0 and row["ping_pong_per_second"] > 0
    assert row["met"] == (
        row["turns_per_second"] >= row["bar_turns_per_second"] and row["share_of_ping_pong"] >= row["bar_share"]
    )


def test_every_contestant_is_asked_for_at_least_one_turn() -> None:
    assert pingpong.turns_per_second(8, 1) > 0
    assert plane.turns_per_second(8, 1) > 0
