"""An engine of two is killed in a real run on Ray: the other one goes on, and the successor catches up."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from test_failures import Run, _lines

TWO_ENGINES = Path(__file__).parent / "two_engines.yaml"


@pytest.mark.slow
def test_the_other_engine_goes_on_when_one_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", 5000, f"cluster={TWO_ENGINES}")
    run.until_step(4)
    run.kill("all-0")
    step = 5
    while not any(route["engine"] == "all-0/2" for route in run.events("route")):  # however long it takes to start
        run.until_step(step)
        step += 1
    run.process.send_signal(signal.SIGINT)
    run.process.communicate(timeout=100)
    events = _lines(tmp_path / "run" / "events.jsonl")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    gone = place(events, "engine.gone", engine="all-0/1")
    serves = place(events, "engine.serve", engine="all-0/2")
    meanwhile = events[gone:serves]
    ended = {event["data"]["id"] for event in meanwhile if event["name"] == "trajectory.end"}
    begun = {event["data"]["attempt"] for event in meanwhile if event["name"] == "route"}
    assert ended & begun, "episodes began and ended while there was one engine"
    assert {event["data"]["engine"] for event in meanwhile if event["name"] == "route"} == {"all-1/1"}
    assert any(event["data"]["engine"] == "all-0/2" for event in events[serves:] if event["name"] == "route")
    assert summary["attempts"]["infra-failed"] == 0, "no episode was lost: its turn began again elsewhere"
    assert events[serves]["data"]["version"] == committed(events[:serves])


def place(events: list[dict[str, Any]], name: str, engine: str) -> int:
    return next(n for n, e in enumerate(events) if e["name"] == name and e["data"]["engine"] == engine)


def committed(events: list[dict[str, Any]]) -> int:
    return max(event["data"]["version"] for event in events if event["name"] == "weights.commit")
