"""`python -m tools.rollart [--steps N] [--out DIR]`: the flagship recipe, and what it is worth (`make rollart`).

It trains `recipes/rollart/rollart.yaml`, then measures the same job on single pools of equal cost (two engines of one
kind), and simulates all three with the trajectories of the first run. The last lines are the summary.
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

SIMULATED_STEPS = 16

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
        rows[name] = train(job, some, folder / name, steps, policy=None if name == "mix" else folder / "mix" / "policy")
    print(summary(folder, rows, predict(job, variants, folder / "mix")))


def single(pool: Data, pools: list[Data]) -> list[Data]:
    """All engines of one kind."""
    return [{**pool, "count": sum(other["count"] for other in pools)}]


def train(job: Data, pools: list[Data], folder: Path, steps: int, policy: Path | None) -> list[Data]:
    """`rollweave train` on these pools; all start from the policy of the first run."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_name(f"{folder.name}.yaml")
    data = {**job, "cluster": {"pools": pools}}
    target = f"{RECIPE.parent / 'sums.py'}:Sums"
    data["environment"] = {
        **job["environment"],
        "of": [
            {**one, "environment": target} if isinstance(one["environment"], str) else one
            for one in job["environment"]["of"]
        ],
    }
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    model = [] if policy is None or not policy.is_dir() else ["model.type=local", f"model.path={policy}"]
    command = [sys.executable, "-m", "rollweave.cli.main", "train", str(file), f"training.steps={steps}", *model]
    subprocess.run([*command, "--out", str(folder)], check=True)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def predict(job: Data, variants: dict[str, list[Data]], trace: Path) -> dict[str, SimulationResult]:
    """The same job on modelled engines, with the trajectories of the run."""
    return {
        name: simulate(
            scenario(
                {
                    "name": name,
                    "model": "tiny",
                    "warmup": SKIPPED_STEPS,
                    "cluster": {"pools": pools},
                    "workload": {"trace": str(trace)},
                    "rollout": job["rollout"],
                    "pipeline": job["pipeline"],
                    "training": {"steps": SIMULATED_STEPS},
                }
            )
        )
        for name, pools in variants.items()
    }


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
