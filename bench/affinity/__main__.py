"""`python -m bench.affinity [--models 8B 14B 32B] [--seeds 3] [--short] [--real] [--repeats 5] [--out DIR] [--json]`

Without `--real` everything is simulated. `--real` runs on Ray on this machine, and needs two cores to itself. The exit
code says whether all bars are met.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import real
from .simulated import CASES, PAPER, measure, two_devices


def main() -> None:
    arguments = _arguments()
    if arguments.real:
        with tempfile.TemporaryDirectory(prefix="bench-affinity-") as temporary:
            found = real.compare(arguments.repeats, arguments.out or Path(temporary))
        print(json.dumps(found, indent=1) if arguments.json else _real_table(found))
        sys.exit(not (found["met"] and found["exchange"]["met"]))
    seeds = range(1 if arguments.short else arguments.seeds)
    names = arguments.models[:1] if arguments.short else arguments.models
    results = [measure(case, seeds) for case in CASES if case.model in names]
    own = two_devices(seeds)
    print(json.dumps({"papers_pools": results, "two_devices": own}) if arguments.json else _table(results, own))
    sys.exit(not all(found["met"] for found in (*results, own)))


def _table(results: list[dict[str, Any]], own: dict[str, Any]) -> str:
    lines = ["the paper's pools of equal cost, tokens/s:"]
    for row in results:
        h20, h800 = PAPER[row["model"]]
        lines += [
            f"  {row['model']}: auto {row['auto']:,.0f}, the best of all mappings {row['best_declared']:,.0f} "
            f"({row['best_mapping']}), least held {row['least_held']:,.0f}",
            f"      of the best {row['of_best']:.3f} (bar 0.98) {_word(row)}",
            f"      to H20 only {row['to_h20_only']:.2f}x (paper {h20:.2f}x), to H800 only {row['to_h800_only']:.2f}x "
            f"(paper {h800}x); a step waits for {row['bottleneck']}",
            f"      served {_served(row['served'])}",
        ]
    ratios = ", ".join(f"{ratio:.2f}x {name} only" for name, ratio in own["ratios"].items())
    return "\n".join(
        [
            *lines,
            f"two devices, neither better for both tasks: auto {own['auto']:,.0f} tokens/s, {ratios} (bar 1.10x each) "
            f"{_word(own)}",
            f"  a step waits for {own['bottleneck']}",
            f"  served {_served(own['served'])}",
            f"  with the figures of the devices exchanged {_served(own['served_exchanged'])}",
        ]
    )


def _served(served: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{task}: " + ", ".join(f"{share:.0%} {pool}" for pool, share in shares.items())
        for task, shares in served.items()
    )


def _real_table(found: dict[str, Any]) -> str:
    speeds = [f"  {name:<18} {speed:>7,.0f} steps/h" for name, speed in found["steps_per_hour"].items()]
    exchange = found["exchange"]
    return "\n".join(
        [
            *speeds,
            f"auto: {found['to_least_held']:.2f}x least_held (bar 1.15x), {found['to_best_declared']:.2f}x the best "
            f"declared, {found['best_declared']} (bar 0.95x) {_word(found)}",
            f"slow-downs exchanged at step {real.EXCHANGE_AT}: followed after {exchange['steps']} steps "
            f"(bar {real.FOLLOWED_STEPS}) {_word(exchange)}",
        ]
    )


def _word(found: dict[str, Any]) -> str:
    return "met" if found["met"] else "MISSED"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.affinity", description=__doc__)
    models = [case.model for case in CASES]
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="one seed, and the first model only")
    parser.add_argument("--real", action="store_true", help="real engines on Ray, instead of a simulation")
    parser.add_argument("--repeats", type=int, default=5, help="of the real runs")
    parser.add_argument("--out", type=Path, help="keep the run folders of real runs here")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
