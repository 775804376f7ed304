"""All variants on all seeds, a process to a core. (Not in `__main__`, which worker processes cannot import.)"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.learning.learn import Curve, learn, make_policy
from bench.learning.statistics import Curves
from bench.learning.variants import TARGET, Variant
from rollweave.config.job import Job


@dataclass(frozen=True, slots=True)
class Work:
    variant: Variant
    seed: int
    overrides: list[str]
    policy: Path

    def job(self) -> Job:
        return self.variant.job([f"seed={self.seed}", *self.overrides])


def measure(chosen: list[Variant], seeds: range, overrides: list[str], processes: int, folder: Path) -> Curves:
    """The learning curve of every variant from every seed; all variants of a seed start from the same policy."""
    work = [Work(variant, seed, overrides, folder / str(seed)) for seed in seeds for variant in chosen]
    for first in work[:: len(chosen)]:
        make_policy(first.job(), first.policy)
    curves: Curves = {variant: {} for variant in chosen}
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, (variant, seed, curve) in enumerate(pool.imap_unordered(play, work), 1):
            curves[variant][seed] = curve
            steps = curve.steps_to(TARGET)
            print(f"... {done}/{len(work)} seed {seed}, {variant.name}: {steps} steps", file=sys.stderr, flush=True)
    return curves


def play(work: Work) -> tuple[Variant, int, Curve]:
    logging.disable(logging.WARNING)  # the wrong denominator warns each step, as it should
    return work.variant, work.seed, learn(work.job(), work.policy, TARGET)
