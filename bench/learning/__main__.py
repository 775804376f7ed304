"""`python -m bench.learning [--seeds 8] [--alphas 1 2 4] [--losses ...] [--processes 2] [--json] [--out DIR]`

Real engine and trainer on the virtual clock: how many steps is a matter of seeds alone, not of the machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from bench.learning.learn import Curve, learn, make_policy
from bench.learning.plot import svg
from bench.learning.statistics import Curves, as_json, summarise, table
from bench.learning.variants import ALPHAS, FILE, LOSSES, TARGET, WRONG, Variant, variants
from rollweave.config.load import load_job

Work = tuple[Variant, int, Path]


def main() -> None:
    arguments = _arguments()
    chosen = variants(arguments.losses, arguments.alphas)
    with tempfile.TemporaryDirectory(prefix="bench-learning-") as folder:
        curves = measure(chosen, arguments.seeds, arguments.processes, Path(folder))
    figures = summarise(curves)
    result = as_json(figures, curves)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "learning.json").write_text(json.dumps(result), encoding="utf-8")
        (arguments.out / "learning.svg").write_text(svg(figures), encoding="utf-8")
    print(json.dumps(result) if arguments.json else table(figures))


def measure(chosen: list[Variant], seeds: int, processes: int, folder: Path) -> Curves:
    policies = {seed: make_policy(load_job(FILE, [f"seed={seed}"]), folder / str(seed)) for seed in range(seeds)}
    work = [(variant, seed, policies[seed]) for seed in range(seeds) for variant in chosen]
    curves: Curves = {variant: {} for variant in chosen}
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, (variant, seed, curve) in enumerate(pool.imap_unordered(play, work), 1):
            curves[variant][seed] = curve
            steps = curve.steps_to(TARGET)
            print(f"... {done}/{len(work)} seed {seed}, {variant.name}: {steps} steps", file=sys.stderr, flush=True)
    return curves


def play(work: Work) -> tuple[Variant, int, Curve]:
    variant, seed, policy = work
    logging.disable(logging.WARNING)  # the wrong denominator warns each step, as it should
    job = load_job(FILE, [f"seed={seed}", *variant.overrides])
    return variant, seed, learn(job, policy, TARGET)


def _arguments() -> argparse.Namespace:
    losses = [*LOSSES, WRONG]
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--alphas", type=int, nargs="+", default=list(ALPHAS))
    parser.add_argument("--losses", nargs="+", choices=losses, default=losses, metavar="LOSS")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write learning.json and learning.svg here")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
