"""The bench of many environments over Ray runs, and counts what it plays."""

from __future__ import annotations

import pytest
from bench.envs.__main__ import measure, table


@pytest.mark.slow
def test_it_plays_all_environments_at_once_and_says_who_computed() -> None:
    row = measure(environments=64, steps=1, repeats=1)
    assert row["environments_at_once"] == 64 and row["infra_failed"] == 0
    assert row["turns_per_second"] > 0
    assert {"driver", "host", "engine", "trainer", "ray"} == set(row["cpu_seconds"])
    assert row["cpu_seconds"]["host"] > 0
    assert table(row).endswith("met" if row["met"] else "MISSED")
