"""Train recipes as a user would, each to its own target: `python -m tools.recipes [RECIPE ...] [--steps N]`.

With `--steps` every recipe runs that many train steps only, which shows that it works and not that it learns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def train(recipe: Path, folder: Path, steps: int | None) -> int:
    short = [] if steps is None else [f"training.steps={steps}", "evaluation.target=null", "evaluation.tasks=8"]
    command = [sys.executable, "-m", "rollweave.cli.main", "train", str(recipe), *short, "--out", str(folder)]
    return subprocess.run(command, cwd=ROOT).returncode


def verdict(returncode: int, summary: dict[str, Any], steps: int | None) -> str:
    """Why the run is not good enough; empty if it is."""
    if returncode:
        return f"ended with code {returncode}"
    if summary.get("exit_reason") not in ("completed", "target"):
        return f"summary.json says {summary.get('exit_reason', 'nothing')}"
    if steps is not None and summary["steps"] != steps:
        return f"made {summary['steps']} of {steps} steps"
    if summary.get("target_reached") is False:
        return f"best held-out reward {summary['eval_best']} is below its target {summary['target']}"
    return ""


def read_summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def run(recipe: Path, steps: int | None) -> bool:
    print(f"--- {recipe.name}", flush=True)
    folder = ROOT / "runs" / f"{recipe.stem}-{datetime.now():%Y%m%d-%H%M%S}"
    returncode = train(recipe, folder, steps)
    summary = read_summary(folder)
    problem = verdict(returncode, summary, steps)
    rewards = f"held-out reward {summary.get('eval_first')} -> {summary.get('eval_final')}"
    print(f"--- {recipe.name}: {problem or 'good'}; {rewards}; {folder}", flush=True)
    return not problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", type=Path, help="default: all of recipes/")
    parser.add_argument("--steps", type=int, help="train steps of each, instead of its target")
    arguments = parser.parse_args()
    recipes = [path.resolve() for path in arguments.recipes] or sorted((ROOT / "recipes").glob("*.yaml"))
    results = {recipe.name: run(recipe, arguments.steps) for recipe in recipes}
    failed = [name for name, good in results.items() if not good]
    print(
        f"{len(results) - len(failed)} of {len(results)} recipes good"
        + (f"; not: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
