"""Two real jobs on two rollout nodes: the last answers of one make room for the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.mux_real.watch import Watch

from rollweave.errors import ConfigError
from rollweave.mux.daemon.client import Client, submission
from rollweave.mux.daemon.store import StateFolder
from rollweave.observability.events import read_events
from test_mux_daemon_cli import done

JOB = Path(__file__).parent / "two_nodes.yaml"
STEPS = 5


def test_several_engines_have_a_node_each() -> None:
    assert submission(JOB, (), 2.0, None, 1)["n_roll"] == 2
    assert submission(JOB, ("runtime.engines=1",), 2.0, 2, 1)["n_roll"] == 2
    with pytest.raises(ConfigError, match=r"runtime.engines is 2 and --rollout-nodes 3.*set runtime.engines=3"):
        submission(JOB, (), 2.0, 3, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_requests_move_and_another_job_has_the_node(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path)]
    done("daemon", "start", "--rollout-nodes", "2", "--policy", "per-iteration", *state)
    try:
        for seed in (4, 5):
            done("submit", str(JOB), f"seed={seed}", "--slo", "4", *state)
        client = Client(StateFolder(tmp_path))
        jobs = Watch(client, STEPS).until_done()
        told = [event[1] for job in jobs for event in client.get(f"/jobs/{job['id']}")["events"]]
    finally:
        done("daemon", "stop", *state)
    moves = [e for job in jobs for e in read_events(Path(job["run"]) / "events.jsonl") if e.name == "requests.move"]
    assert "narrowed" in told
    assert any(move.data["nodes"] == 1 for move in moves), "a tail was gathered on one node"
    for job in jobs:
        ends = [e for e in read_events(Path(job["run"]) / "events.jsonl") if e.name == "attempt.end"]
        trained = [e for e in ends if e.data["end"] == "trained"]
        assert len(trained) == STEPS * 20
