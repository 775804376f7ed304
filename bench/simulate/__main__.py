"""`python -m bench.simulate [--gpus N ...] [--steps N] [--json]`: simulated turns per second on one core, and memory.

A sixth of the GPUs train, the others generate (RollArt's 1:5), with 16,384 trajectories a step on 3,000 GPUs and as
many per GPU on fewer; an episode has 12 turns on average, from 1 to 48, and environments fail.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import rollweave

TRAJECTORIES_PER_STEP = 16_384
GPUS = 3_000
BAR_SECONDS = 240
BAR_TURNS_PER_SECOND = 8_000
BAR_GIB = 3.0
BAR_SLOWDOWN = 2.0
"""Cost of a turn on the most GPUs against the fewest."""


def production(gpus: int, steps: int) -> dict[str, Any]:
    train = max(1, gpus // 6)
    trajectories = max(16, round(TRAJECTORIES_PER_STEP * gpus / GPUS / 8) * 8)
    return {
        "name": f"production on {gpus} GPUs",
        "training": {"steps": steps},
        "warmup": 1,
        "model": "qwen3-8b",
        "cluster": {
            "pools": [
                {"name": "rollout", "device": "H20", "count": gpus - train, "role": "rollout"},
                {"name": "train", "device": "H800", "count": train, "role": "train"},
            ]
        },
        "workload": {"tasks": [{"preset": "production"}]},
        "rollout": {
            "groups_per_step": trajectories // 8,
            "group_size": 8,
            "environments": trajectories,
            "max_context": 65536,
        },
        "pipeline": {"type": "rollart", "alpha": 1},
    }


def measure(gpus: int, steps: int) -> dict[str, Any]:
    """In this process: memory is its own."""
    rollweave.simulate(production(6, steps=2))  # the first call imports what it needs
    started = time.process_time()
    outcome = rollweave.simulate(production(gpus, steps))
    seconds = time.process_time() - started
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "gpus": gpus,
        "steps": outcome["steps"],
        "trajectories": outcome["trajectories"],
        "turns": outcome["turns"],
        "mean_turns": round(outcome["turns"] / outcome["trajectories"], 2),
        "failures": outcome["failures"],
        "seconds": round(seconds, 1),
        "turns_per_second": round(outcome["turns"] / seconds),
        "gib": round(gib, 2),
        "simulated_step_seconds": round(outcome["step_seconds"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gpus", type=int, nargs="+", default=[30, GPUS])
    arguments = parser.parse_args()
    if len(arguments.gpus) == 1:
        results = [measure(arguments.gpus[0], arguments.steps)]
    else:
        results = [_in_a_process(gpus, arguments.steps) for gpus in arguments.gpus]
    print(json.dumps(results) if arguments.json else _table(results))


def _in_a_process(gpus: int, steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.simulate", "--json", "--gpus", str(gpus), "--steps", str(steps)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(answer)[0]
    return result


def _table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'GPUs':>6} {'turns':>9} {'a step':>7} {'failures':>8} {'seconds':>8} {'turns/s':>8} {'GiB':>5}"]
    for row in results:
        lines.append(
            f"{row['gpus']:>6} {row['turns']:>9} {row['simulated_step_seconds']:>5.0f} s {row['failures']:>8} "
            f"{row['seconds']:>8.1f} {row['turns_per_second']:>8} {row['gib']:>5.2f}"
        )
    first, last = results[0], results[-1]
    if len(results) > 1:
        slowdown = first["turns_per_second"] / last["turns_per_second"]
        verdict = "met" if slowdown <= BAR_SLOWDOWN else "MISSED"
        lines.append(f"a turn costs {slowdown:.2f} times as much on {last['gpus']} GPUs (at most 2: {verdict})")
    if last["gpus"] >= GPUS and last["steps"] >= 10:
        fast = last["seconds"] <= BAR_SECONDS and last["turns_per_second"] >= BAR_TURNS_PER_SECOND
        verdict = "met" if fast and last["gib"] <= BAR_GIB else "MISSED"
        lines.append(f"bar: {BAR_SECONDS} s, {BAR_TURNS_PER_SECOND} turns/s, {BAR_GIB:g} GiB: {verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
