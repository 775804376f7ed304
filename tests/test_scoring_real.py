"""A reward that takes time holds no environment, in real runs: as a user would start them, judged by their events."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SLOTS, MEMBERS = 2, 4

REWARDS = f"""
import asyncio, threading, time

all_members = threading.Barrier({MEMBERS})
arrived = []

def plain_meeting(trajectory):  # ends when the rewards of all members are computed at the same time
    return float(all_members.wait() >= 0)

async def async_meeting(trajectory):
    arrived.append(trajectory.id)
    while len(arrived) % {MEMBERS}:
        await asyncio.sleep(0.01)
    return 1.0

def plain_sleep(trajectory):
    time.sleep(5)
    return 1.0

async def async_sleep(trajectory):
    await asyncio.sleep(5)
    return 1.0

def hangs(trajectory):
    if trajectory.member == 0:
        time.sleep(10_000)
    return 1.0
"""

JOB = f"""
model: {{type: tiny, hidden: 32, layers: 1, head_dim: 8, warm_start: {{steps: 0}}}}
environment: {{type: frozen_lake}}
pipeline: {{type: sync+}}
rollout: {{groups_per_step: 2, group_size: {MEMBERS // 2}, environments: {SLOTS}, max_turns: 3}}
training: {{steps: 1}}
evaluation: {{every: 0}}
checkpoint: {{every: 0}}
logging: {{tensorboard: false}}
"""

INLINE = ["runtime.type=inline", "runtime.threads=1"]
RAY = ["runtime.type=ray"]


def train(folder: Path, reward: str, *overrides: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "job.yaml").write_text(f"{JOB}rewards: [{{function: 'rewards.py:{reward}'}}]\n")
    out = folder / "run"
    command = [sys.executable, "-m", "rollweave.cli.main", "train", str(folder / "job.yaml"), *overrides]
    return out, subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=240)


def events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def slots_were_free(out: Path) -> None:
    """Every member was played before the first reward was there, on half as many slots."""
    names = [event["name"] for event in events(out)]
    first = names.index("reward.end")
    assert names[:first].count("episode.begin") == names[:first].count("episode.end") == MEMBERS
    assert max(event["data"]["slots"] for event in events(out) if event["name"] == "episode.begin") == SLOTS
    assert json.loads((out / "summary.json").read_text())["attempts"]["trained"] == MEMBERS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", [INLINE, pytest.param(RAY, marks=pytest.mark.slow)], ids=["inline", "ray"])
@pytest.mark.parametrize("reward", ["plain_meeting", "async_meeting"])
def test_more_rewards_are_computed_at_once_than_there_are_environments(
    reward: str, runtime: list[str], tmp_path: Path
) -> None:
    """Each reward waits for those of all other members: if it held its slot, or the loop, none would ever come."""
    out, done = train(tmp_path, reward, *runtime, "rollout.deadlines.reward=60")
    assert done.returncode == 0, done.stderr
    slots_were_free(out)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", [INLINE, RAY], ids=["inline", "ray"])
@pytest.mark.parametrize("reward", ["plain_sleep", "async_sleep"])
def test_a_reward_that_sleeps_holds_no_environment(reward: str, runtime: list[str], tmp_path: Path) -> None:
    out, done = train(tmp_path, reward, *runtime)
    assert done.returncode == 0, done.stderr
    slots_were_free(out)


@pytest.mark.timeout(300)
def test_a_plain_function_that_hangs_costs_its_member_and_neither_the_run_nor_its_end(tmp_path: Path) -> None:
    settings = ["rollout.deadlines.reward=0.5", "rollout.group_size=3"]
    out, done = train(tmp_path, "hangs", *INLINE, *settings)
    assert done.returncode == 0, done.stderr
    (row,) = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert (row["ledger/attempt/reward-failed"], row["ledger/attempt/trained"]) == (2, 4)
    assert row["scoring/threads_left"] == 2
    causes = [event["data"]["cause"] for event in events(out) if event["name"] == "reward.end"]
    assert sum("reward hangs since 0.5 s (deadline 0.5 s" in (cause or "") for cause in causes) == 2


def test_a_run_with_rewards_that_take_time_is_replayed(tmp_path: Path) -> None:
    out, done = train(tmp_path, "async_meeting", *INLINE, "training.steps=3", "evaluation.every=0")
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "rollweave.cli.main", "replay", str(out)]
    replayed = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert replayed.returncode == 0 and "all the same (3 steps)" in replayed.stdout, replayed.stdout + replayed.stderr
