"""`python -m tools.rollart [--lab] [--steps N] [--out DIR]`: the flagship recipe and what it is worth.

It starts a Ray cluster of two nodes on this machine, one for each pool, and trains `recipes/rollart/rollart.yaml` on
them. Then it measures the same job on single pools of equal cost (two engines of one kind). Then it profiles this
machine, and simulates all three on it. The last lines are the summary.

With `--lab` (`make rollart LAB=1`, root only) the nodes are hosts of `tools/lab` with a slow link between them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import scenario, simulate
from tools.lab.hosts import RayHost
from tools.lab.lab import Lab, LabHost
from tools.lab.loopback import LoopbackLab

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "rollart" / "rollart.yaml"
ROLLWEAVE = (sys.executable, "-m", "rollweave.cli.main")

SKIPPED_STEPS = 4
"""The first steps fill the pipeline, and learn."""

LINK = "200mbit"
"""Between the hosts of the lab."""

Data = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.rollart", description=__doc__)
    parser.add_argument("--lab", action="store_true", help="on hosts of tools/lab, with a slow link between them")
    parser.add_argument("--steps", type=int, default=30, help="train steps of the recipe")
    parser.add_argument("--single-steps", type=int, default=12, help="train steps on each single pool")
    parser.add_argument("--out", type=Path, help="the folder of the three runs")
    arguments = parser.parse_args()
    folder = (arguments.out or ROOT / "runs" / f"rollart-{datetime.now():%Y%m%d-%H%M%S}").absolute()
    job = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    pools = job["cluster"]["pools"]
    variants = {"mix": pools, **{pool["name"]: single(pool, pools) for pool in pools}}
    rows = {}
    for name, some in variants.items():
        steps = arguments.steps if name == "mix" else arguments.single_steps
        with cluster(some, arguments.lab) as driver:
            data = {**job, "cluster": {"pools": some}, "runtime": {"type": "ray", "address": driver.ray_address}}
            rows[name] = train(driver, data, folder / name, steps, folder / "mix" / "policy")
    print(summary(folder, rows, predict(profile(job, folder), variants)))


def single(pool: Data, pools: list[Data]) -> list[Data]:
    """All engines of one kind."""
    return [{**pool, "count": sum(other["count"] for other in pools)}]


@contextmanager
def cluster(pools: list[Data], lab: bool) -> Iterator[RayHost]:
    """A Ray cluster with a node of one core for each engine of the pools; its first node, where the driver runs."""
    labels = [pool["name"] for pool in pools for _ in range(pool["count"])]
    names = [f"{label}-{number}" for number, label in enumerate(labels)]
    with Lab(names) if lab else LoopbackLab(names) as hosts:
        head = None
        for host, label in zip(hosts, labels, strict=True):
            if isinstance(host, LabHost):
                host.limit(LINK)
            host.start_ray(head, num_cpus=1, labels={"pool": label})
            head = head or host
        assert head is not None
        yield head


def train(driver: RayHost, job: Data, folder: Path, steps: int, policy: Path) -> list[Data]:
    """`rollweave train` on the cluster; all start from the policy of the first run."""
    file = write(job, folder.with_name(f"{folder.name}.yaml"))
    options = [f"training.steps={steps}"]
    if policy.is_dir():
        options += ["model.type=local", f"model.path={policy}"]
    if isinstance(driver, LabHost):
        in_the_lab(driver, file, options, folder, policy)
    else:
        rollweave("train", str(file), *options, "--out", str(folder), driver=driver)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def in_the_lab(driver: LabHost, file: Path, options: list[str], folder: Path, policy: Path) -> None:
    """The host has a disk of its own: what the run needs is brought there, and what it wrote is brought back."""
    inside = driver.path("/tmp/rollart")
    inside.mkdir()
    shutil.copy(file, inside / "job.yaml")
    if policy.is_dir():
        shutil.copytree(policy, inside / "policy")
    options = [option.replace(str(policy), "/tmp/rollart/policy") for option in options]
    rollweave("train", "/tmp/rollart/job.yaml", *options, "--out", "/tmp/rollart/run", driver=driver)
    shutil.copytree(inside / "run", folder)


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


def rollweave(*words: str, driver: RayHost | None = None) -> None:
    """The command, on a host of the cluster or here; what it says is shown."""
    command = [*ROLLWEAVE, *words]
    if driver is not None:
        subprocess.run(driver.command(command), env=driver.environment, check=True)
    else:
        subprocess.run(command, check=True)


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
