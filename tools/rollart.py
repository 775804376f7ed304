"""`python -m tools.rollart [--steps N] [--out DIR]`: the flagship recipe, and what it is worth (`make rollart`).

It trains `recipes/rollart/rollart.yaml`, then measures the same job on single pools of equal cost (two engines of one
kind). Then it profiles this machine, and simulates all three on it. The last lines are the summary.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import scenario, simulate

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "rollart" / "rollart.yaml"

SKIPPED_STEPS = 4
"""The first steps fill the pipeline, and learn."""

Data = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.rollart", description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="train steps of the recipe")
    parser.add_argument("--single-steps", type=int, default=12, help="train steps on each single pool")
    parser.add_argument("--out", type=Path, help="the folder of the three runs")
    arguments = parser.parse_args()
    folder = arguments.out or ROOT / "runs" / f"rollart-{datetime.now():%Y%m%d-%H%M%S}"
    job = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    pools = job["cluster"]["pools"]
    variants = {"mix": pools, **{pool["name"]: single(pool, pools) for pool in pools}}
    rows = {}
    for name, some in variants.items():
        steps = arguments.steps if name == "mix" else arguments.single_steps
        rows[name] = train({**job, "cluster": {"pools": some}}, folder / name, steps, folder / "mix" / "policy")
    print(summary(folder, rows, predict(profile(job, folder), variants)))


def single(pool: Data, pools: list[Data]) -> list[Data]:
    """All engines of one kind."""
    return [{**pool, "count": sum(other["count"] for other in pools)}]


def train(job: Data, folder: Path, steps: int, policy: Path) -> list[Data]:
    """`rollweave train`; all start from the policy of the first run."""
    file = write(job, folder.with_name(f"{folder.name}.yaml"))
    model = ["model.type=local", f"model.path={policy}"] if policy.is_dir() else []
    rollweave("train", str(file), f"training.steps={steps}", *model, "--out", str(folder))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def profile(job: Data, folder: Path) -> Data:
    """`rollweave profile` of one engine of one thread: what the pools' engines are when they are not slowed down."""
    runtime = {"type": "ray", "placement": "colocated", "engine_threads": 1, "trainer_threads": 1}
    alone = {key: value for key, value in job.items() if key != "cluster"} | {"runtime": runtime}
    file, found = write(alone, folder / "profiled.yaml"), folder / "rollart.profile.yaml"
    model = ("model.type=local", f"model.path={folder / 'mix' / 'policy'}")
    rollweave("profile", str(file), *model, "-o", str(found))
    profiled: Data = yaml.safe_load(found.read_text(encoding="utf-8"))
    return profiled


def predict(profiled: Data, variants: dict[str, list[Data]]) -> dict[str, SimulationResult]:
    """The profiled job on the pools of each variant."""
    (measured,), (device,) = profiled["cluster"]["pools"], profiled["cluster"]["devices"]
    room = {key: measured[key] for key in ("slots", "kv_tokens")}
    return {
        name: simulate(
            scenario(
                {
                    **profiled,
                    "cluster": {
                        "devices": [device],
                        "pools": [{**pool, **room, "device": device["name"]} for pool in pools],
                    },
                }
            )
        )
        for name, pools in variants.items()
    }


def write(job: Data, file: Path) -> Path:
    """The job file. The environment of the recipe lies beside the recipe."""
    target = f"{RECIPE.parent / 'sums.py'}:Sums"
    members = [
        {**one, "environment": target} if isinstance(one["environment"], str) else one
        for one in job["environment"]["of"]
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump({**job, "environment": {**job["environment"], "of": members}}), encoding="utf-8")
    return file


def rollweave(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "rollweave.cli.main", *words], check=True)


def summary(folder: Path, rows: dict[str, list[Data]], predicted: dict[str, SimulationResult]) -> str:
    seconds = {name: fmean(row["time/step"] for row in some[SKIPPED_STEPS:]) for name, some in rows.items()}
    lines = [f"{'pools':<12} {'a step':>9} {'mix is':>8} {'simulated':>10}"]
    for name in seconds:
        measured = seconds[name] / seconds["mix"]
        simulated = predicted[name].step_seconds / predicted["mix"].step_seconds
        lines.append(f"{name:<12} {seconds[name]:>7.2f} s {measured:>7.2f}x {simulated:>9.2f}x")
    lines += [f"{task}: {shares}" for task, shares in served(rows["mix"]).items()]
    lines.append(f"report: {folder / 'mix' / 'report.html'}")
    return "\n".join(lines)


def served(rows: list[Data]) -> dict[str, str]:
    """By task: how many of its trajectories each pool served."""
    counts: dict[str, dict[str, int]] = {}
    for row in rows[SKIPPED_STEPS:]:
        for key, count in row.items():
            if key.startswith("served/trajectories/"):
                _, _, task, pool = key.split("/")
                counts.setdefault(task, {}).setdefault(pool, 0)
                counts[task][pool] += count
    return {
        task: ", ".join(f"{count / sum(pools.values()):.0%} on {pool}" for pool, count in sorted(pools.items()))
        for task, pools in sorted(counts.items())
    }


if __name__ == "__main__":
    main()
