"""The shortest job a newcomer can write, everything else by default: it trains, and says how it treats stale data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rollweave.cli.main import main

SHORTEST = "model: tiny\nenvironment: frozen_lake\n"
QUICK = (  # sizes only; nothing that decides what is trained or how
    "training.steps=3",
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "rollout.environments=4",
    "rollout.max_turns=3",
    "rollout.sampling.max_tokens=3",
    "model.warm_start.steps=2",
    "model.warm_start.episodes=10",
    "evaluation.every=0",
    "runtime={type: inline, threads: 1}",
)


def test_the_shortest_job_trains_stale_data_as_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(SHORTEST)
    run = tmp_path / "run"
    with pytest.raises(SystemExit) as ended:
        main(["train", str(tmp_path / "job.yaml"), *QUICK, "--out", str(run)])
    assert ended.value.code == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == (
        "loss: ppo, its ratio over the engine's log-probs (denominator: behaviour); staleness bound (alpha) 1"
    )
    resolved = yaml.safe_load((run / "config.yaml").read_text())
    assert resolved["training"]["loss"]["denominator"] == "behaviour"
    assert (resolved["pipeline"]["type"], resolved["pipeline"]["alpha"]) == ("rollart", 1)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "staleness/max" in row]
    assert len(steps) == 3 and max(row["staleness/max"] for row in steps) == 1
    assert not any(row["offpolicy/uncorrected"] for row in steps)


def test_a_dry_run_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(SHORTEST)
    with pytest.raises(SystemExit):
        main(["train", str(tmp_path / "job.yaml"), "--dry-run"])
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["training"]["loss"]["denominator"] == "behaviour"
    assert "(denominator: behaviour); staleness bound (alpha) 1" in err
