"""All variants on all seeds, a process to a core. (Not in `__main__`, which worker processes cannot import.)"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from pathlib import Path

from bench.learning.learn import Curve, learn, make_policy
from bench.learning.statistics import Curves
from bench.learning.variants import FILE, TARGET, Variant
from rollweave.config.load import load_job


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


def play(work: tuple[Variant, int, Path]) -> tuple[Variant, int, Curve]:
    variant, seed, policy = work
    logging.disable(logging.WARNING)  # the wrong denominator warns each step, as it should
    job = load_job(FILE, [f"seed={seed}", *variant.overrides])
    return variant, seed, learn(job, policy, TARGET)
