"""`python -m bench.runtime [--repeats 5] [--steps 12] [--json] [--out DIR]`

What does the Ray runtime cost? The same job through `rollweave train` in two modes (`sync`, `sync+`), inline and on Ray
with both cores for each phase, at equal threads. Runs alternate, and the ratio is taken within a repeat: a machine that
is slow for a while is slow for both. It needs two cores to itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

_cases = import_module("bench.async.cases")  # `async` is a keyword: no import statement can name it
_measure = import_module("bench.async.measure")

FILE = Path(__file__).parent / "single_turn.yaml"
MODES = ("sync", "sync+")
RUNTIMES = {
    "inline": ("runtime.type=inline",),
    "ray": ("runtime.type=ray", "runtime.placement=colocated"),
}
BAR = 1.08
"""A step on Ray takes at most this many times as long as inline."""
SHOWN = ("step_seconds", "get_batch_seconds", "train_seconds", "sync_seconds", "tokens")


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as temporary:
        results = measure(arguments.repeats, arguments.steps, arguments.out or Path(temporary))
    figures = {mode: compare(results[mode]) for mode in MODES}
    print(json.dumps(figures, indent=1) if arguments.json else "\n".join(table(m, f) for m, f in figures.items()))


def measure(repeats: int, steps: int, folder: Path) -> dict[str, dict[str, list[Any]]]:
    """By mode and runtime, one result for each repeat."""
    names = [f"{mode} {runtime}" for mode in MODES for runtime in RUNTIMES]
    case = _cases.Case(FILE, "64 single-turn episodes", dict.fromkeys(names, steps))
    policy = _measure.make_policy(case, folder / "policy")
    results: dict[str, dict[str, list[Any]]] = {mode: {runtime: [] for runtime in RUNTIMES} for mode in MODES}
    for repeat in range(repeats):
        for mode in MODES:
            for runtime, overrides in list(RUNTIMES.items())[:: 1 if repeat % 2 else -1]:
                how = _cases.Mode(f"{mode} {runtime}", (f"pipeline.type={mode}", *overrides))
                result = _measure.run(case, how, policy, folder / f"{repeat}-{mode}-{runtime}")
                results[mode][runtime].append(result)
                print(
                    f"... {repeat + 1}/{repeats} {how.name}: {result.step_seconds:.3f} s", file=sys.stderr, flush=True
                )
    return results


def compare(runs: dict[str, list[Any]]) -> dict[str, Any]:
    """Medians, and the ratio of the step times, taken within each repeat."""
    ratios = [ray.step_seconds / inline.step_seconds for ray, inline in zip(runs["ray"], runs["inline"], strict=True)]
    medians = {name: {key: median(asdict(run)[key] for run in some) for key in SHOWN} for name, some in runs.items()}
    ratio = median(ratios)
    return {**medians, "ratio": ratio, "least": min(ratios), "most": max(ratios), "bar": BAR, "met": ratio <= BAR}


def table(mode: str, figures: dict[str, Any]) -> str:
    rows = [
        f"  {name:8}" + "".join(f"{key.replace('_seconds', ' s')} {figures[name][key]:8.3f}   " for key in SHOWN)
        for name in RUNTIMES
    ]
    verdict = "met" if figures["met"] else "MISSED"
    spread = f"{figures['least']:.2f} to {figures['most']:.2f}"
    return "\n".join([mode, *rows, f"  ray over inline: {figures['ratio']:.3f} ({spread}), at most {BAR}: {verdict}"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.runtime", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="steady steps of a run")
    parser.add_argument("--out", type=Path, help="keep the run folders here")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
