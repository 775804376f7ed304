"""kill -9 in a real run on Ray: a small version of `python -m bench.kill`.

Trainer, engine and host die in test_failures.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.kill.__main__ import measure
from bench.kill.check import problems


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_machine_and_driver_may_die_at_any_moment(tmp_path: Path) -> None:
    run = tmp_path / "run"
    points, found = measure(run, points=2, seed=2, victims=("machine", "driver"))
    assert found == []
    assert sorted(point.victim for point in points) == ["driver", "machine"]
    _tamper_with_each_promise(run)


def _tamper_with_each_promise(run: Path) -> None:
    """The check itself can fail: a row twice, a task trained twice."""
    metrics = run / "metrics.jsonl"
    text = metrics.read_text()
    metrics.write_text(text + text.splitlines(keepends=True)[0])
    assert any("steps of metrics.jsonl" in problem for problem in problems(run))
    metrics.write_text(text)
    events = run / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    trained = next(line for line in lines if json.loads(line)["data"].get("end") == "trained")
    events.write_text("".join([*lines, trained]))
    assert any("ended twice" in problem for problem in problems(run))
