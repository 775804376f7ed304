"""A real run on Ray with a prefill and a decode pool, in which first the one engine is killed and then the other."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from test_failures import Run

CLUSTER = Path(__file__).parent / "prefill_decode.yaml"
ENOUGH_CORES = """
from rollweave.runtimes import blueprint
blueprint.cores = lambda: 3  # they may share two
from rollweave.cli.main import main
main()
"""


@pytest.mark.slow
def test_contexts_are_handed_over_and_either_engine_may_die(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", 5000, f"cluster={CLUSTER}", program=("-c", ENOUGH_CORES))
    run.until_step(3)
    prefill, decode = "prefill-0", "decode-0"
    run.kill(prefill)
    step = _until_back(run, prefill, 4)
    run.kill(decode)
    _until_back(run, decode, step)
    run.process.send_signal(signal.SIGINT)
    run.process.communicate(timeout=100)
    rows = run.rows()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert all(row["handover/tokens"] > 0 and row["handover/mb"] > 0 for row in (rows[1], rows[-1]))
    assert summary["attempts"]["infra-failed"] == summary["attempts"]["aborted"] == 0, "no episode was lost"
    gaps = [row["mismatch/logprob_gap"] for row in rows if row.get("mismatch/logprob_gap") is not None]
    assert gaps and max(gaps) < 1e-3, "the KV caches were those of the policy that sampled"


def _until_back(run: Run, engine: str, step: int) -> int:
    """The successor has joined and has taken over trajectories; returns the next step to wait for."""
    while not any(f"{engine}/2" in (route["engine"], route.get("prefill")) for route in run.events("route")):
        run.until_step(step)
        step += 1
    for _ in range(2):
        run.until_step(step)
        step += 1
    return step
