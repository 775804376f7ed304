"""Streamed steps in real runs, as a user would start them, judged by their events and metrics."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GROUPS, MEMBERS, STEPS = 4, 2, 2

REWARDS = f"""
import asyncio, json
from pathlib import Path

EVENTS = Path(__file__).parent / "run" / "events.jsonl"

def streamed():
    lines = EVENTS.read_text().splitlines()[:-1]  # the last one may be half written
    ended = [json.loads(line)["data"]["groups"] for line in lines if '"stream.end"' in line]
    return {{group for groups in ended for group in groups}}

async def last_one_waits(trajectory):
    # The last group of a step is not complete before the trainer has worked on all others.
    first = trajectory.group // {GROUPS} * {GROUPS}
    if trajectory.group == first + {GROUPS} - 1:
        while not set(range(first, trajectory.group)) <= streamed():
            await asyncio.sleep(0.02)
    return float(trajectory.member)
"""

JOB = f"""
model: {{type: tiny, hidden: 32, layers: 1, head_dim: 8, warm_start: {{steps: 0}}}}
environment: {{type: frozen_lake}}
pipeline: {{type: sync+}}
rollout: {{groups_per_step: {GROUPS}, group_size: {MEMBERS}, environments: 8, max_turns: 3}}
training: {{steps: {STEPS}, stream: true}}
evaluation: {{every: 0}}
checkpoint: {{every: 1}}
logging: {{tensorboard: false}}
rewards: [{{function: 'rewards.py:last_one_waits'}}]
"""


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", ["inline", "ray"])
def test_the_trainer_works_while_the_last_group_is_still_played(tmp_path: Path, runtime: str) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "job.yaml").write_text(JOB)
    command = [sys.executable, "-m", "rollweave.cli.main", "train", str(tmp_path / "job.yaml")]
    command += [f"runtime.type={runtime}", "--out", str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    rows = lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["train/streamed_share"] for row in rows] == [1.0] * STEPS
    assert all(row["grad/norm"] > 0 for row in rows)
    assert rows[-1]["ledger/attempt/trained"] == GROUPS * MEMBERS * STEPS
