"""Every pipeline on every runtime and placement, for two steps, as a user would start it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
TWO_ENGINES = Path(__file__).parent / "two_engines.yaml"
SMALL = [
    *("model.hidden=32", "model.warm_start.steps=5", "model.warm_start.episodes=50", "rollout.groups_per_step=4"),
    *("rollout.group_size=4", "rollout.max_turns=4", "training.steps=2", "evaluation.every=1", "evaluation.tasks=4"),
    "evaluation.target=null",
]
FILES = ["weights.store=file", "weights.url=file://{folder}/weights"]


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(["runtime.type=inline", "runtime.threads=1", "pipeline.type=sync"], id="inline-sync"),
        pytest.param(["runtime.type=inline", "runtime.threads=1", "pipeline.type=sync+"], id="inline-sync+"),
        pytest.param(["runtime.type=inline", "runtime.threads=1", "pipeline.type=one_off"], id="inline-one_off"),
        pytest.param(["runtime.type=inline", "runtime.threads=1", "pipeline.type=areal"], id="inline-areal"),
        pytest.param(["pipeline.type=sync", "runtime.hosts=2"], id="ray-sync-two-hosts", marks=pytest.mark.slow),
        pytest.param(["runtime.placement=colocated"], id="ray-colocated-rollart", marks=pytest.mark.slow),
        pytest.param([f"cluster={TWO_ENGINES}"], id="ray-two-engines", marks=pytest.mark.slow),
        pytest.param(["pipeline.alpha=2", "rollout.isolation=process"], id="ray-isolated", marks=pytest.mark.slow),
        pytest.param([*FILES, "weights.delta=true"], id="ray-weights-in-files", marks=pytest.mark.slow),
    ],
)
def test_a_run_completes(where: list[str], tmp_path: Path) -> None:
    out, where = tmp_path / "run", [word.format(folder=tmp_path) for word in where]
    command = [sys.executable, "-m", "rollweave.cli.main", "train", str(RECIPE), *SMALL, *where, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["exit_reason"] == "completed"
    assert summary["steps"] == 2
    assert summary["tasks"]["trained"] == 2 * 4
    assert summary["attempts"]["trained"] == 2 * 4 * 4
    workers = [json.loads(line)["data"] for line in (out / "events.jsonl").open() if '"worker.ready"' in line]
    engines = {data["worker"] for data in workers if data["worker"].startswith(("engine", "all-"))}
    assert len(engines) == (2 if str(TWO_ENGINES) in where[0] else "inline" not in where[0])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("eval/version") for row in rows] == [0, 1, 2]
