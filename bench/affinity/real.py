"""Affinity on real engines: `auto`, `least_held` and both declared mappings, alternating, on Ray on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import yaml

from rollweave.config.load import load_job
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.policies.start import start_policy

HERE = Path(__file__).resolve().parents[2] / "recipes" / "rollart"
FILE = HERE / "rollart.yaml"

POLICIES: dict[str, dict[str, list[str]] | str] = {
    "auto": "auto",
    "least_held": "least_held",
    "lake to contexts": {"contexts": ["lake"], "answers": ["sums"]},
    "lake to answers": {"contexts": ["sums"], "answers": ["lake"]},
}
"""The setting, or the declared tasks of each pool."""

SKIPPED_STEPS, MEASURED_STEPS = 4, 10
EXCHANGE_AT, FOLLOWED_STEPS = 12, 20
OF_LEAST_HELD, OF_BEST = 1.15, 0.95

WINDOW = 5
"""Steps over which shares are a mean: a step has a few groups only."""

Rows = list[dict[str, Any]]


def compare(repeats: int, folder: Path) -> dict[str, Any]:
    """Each repeat runs every policy once, in rotating order; ratios are taken within a repeat."""
    policy, names = make_policy(folder / "policy"), list(POLICIES)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        for place in range(len(names)):
            name = names[(repeat + place) % len(names)]
            rows = train(name, policy, folder / f"{repeat}-{name.replace(' ', '-')}", SKIPPED_STEPS + MEASURED_STEPS)
            speeds[name].append(steps_per_hour(rows))
            print(f"... {repeat + 1}/{repeats} {name}: {speeds[name][-1]:,.0f} steps/h", file=sys.stderr, flush=True)
    return {**judge(speeds), "exchange": exchange(policy, folder / "exchange")}


def judge(speeds: Mapping[str, list[float]]) -> dict[str, Any]:
    medians = {name: median(found) for name, found in speeds.items()}
    best = max((name for name, how in POLICIES.items() if isinstance(how, dict)), key=lambda name: medians[name])
    to_least = median(a / b for a, b in zip(speeds["auto"], speeds["least_held"], strict=True))
    to_best = median(a / b for a, b in zip(speeds["auto"], speeds[best], strict=True))
    return {
        "steps_per_hour": medians,
        "runs": dict(speeds),
        "best_declared": best,
        "to_least_held": to_least,
        "to_best_declared": to_best,
        "met": to_least >= OF_LEAST_HELD and to_best >= OF_BEST,
    }


def exchange(policy: Path, folder: Path) -> dict[str, Any]:
    """The slow-downs of the two pools are exchanged in mid-run: after how many steps is the other one preferred?"""
    rows = train("auto", policy, folder, EXCHANGE_AT + FOLLOWED_STEPS + 4, exchange_at=EXCHANGE_AT)
    shares = [share(row, "lake", "contexts") for row in rows]
    steps = followed(shares, EXCHANGE_AT)
    before = fmean(one for one in shares[SKIPPED_STEPS:EXCHANGE_AT] if one is not None)
    return {
        "lake_on_contexts": shares,
        "share_before": before,
        "steps": steps,
        "met": before > 0.5 and steps is not None and steps <= FOLLOWED_STEPS,
    }


def share(row: Mapping[str, Any], task: str, pool: str) -> float | None:
    """Of the trajectories of a task that ended in this step, those that the pool served."""
    counts = {key.rpartition("/")[2]: n for key, n in row.items() if key.startswith(f"served/trajectories/{task}/")}
    return counts.get(pool, 0) / sum(counts.values()) if counts else None


def followed(shares: list[float | None], exchanged_at: int) -> int | None:
    """Steps after the exchange until the pool has served less than half of the task, over the last five of them; None:
    never."""
    for end in range(exchanged_at + WINDOW, len(shares) + 1):
        known = [one for one in shares[end - WINDOW : end] if one is not None]
        if known and fmean(known) < 0.5:
            return end - exchanged_at
    return None


def steps_per_hour(rows: Rows) -> float:
    steady = [row["time/step"] for row in rows if row["step"] >= SKIPPED_STEPS and "time/step" in row]
    return 3600 / fmean(steady)


def make_policy(folder: Path) -> Path:
    """Made once: all runs start from the same."""
    job = load_job(FILE)
    environments = EnvironmentFactory.from_config(job.environment, HERE)
    return start_policy(job, folder, environments, source(job.environment, job.seed, HERE), lambda *progress: None)


def job_of(name: str, exchange_at: int | None = None) -> dict[str, Any]:
    """The job file under a policy."""
    data: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    data["environment"]["of"][1]["environment"] = f"{HERE / 'sums.py'}:Sums"
    data["training"]["learning_rate"] = 1e-6  # the lengths of episodes stay: every policy does the same work
    how = POLICIES[name]
    for pool in data["cluster"]["pools"]:
        if isinstance(how, dict):
            pool["tasks"] = how[pool["name"]]
        if exchange_at is not None:
            pool["slowdown"]["exchange_at"] = exchange_at
    if isinstance(how, str):
        data["rollout"]["affinity"] = how
    return data


def train(name: str, policy: Path, folder: Path, steps: int, exchange_at: int | None = None) -> Rows:
    """`rollweave train` in a process of its own, without what the caller set for torch."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_name(f"{folder.name}.yaml")
    file.write_text(yaml.safe_dump(job_of(name, exchange_at)), encoding="utf-8")
    model = ("model.type=local", f"model.path={policy}")
    command = [sys.executable, "-m", "rollweave.cli.main", "train", str(file), *model, f"training.steps={steps}"]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [*command, "--out", str(folder)], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
