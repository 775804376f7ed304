"""kill -9 of a real daemon and a real job: a small version of `python -m bench.mux_kill`."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.mux_kill.__main__ import measure


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_and_then_everybody_may_die(tmp_path: Path) -> None:
    points, found = measure(tmp_path, points=2, jobs=2, seed=3, victims=("job", "both"))
    assert found == []
    assert sorted(point.victim for point in points) == ["both", "job"]
