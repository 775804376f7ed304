"""R3: compares three math jobs with a 7B judge on reward GPUs of their own with the same jobs on shared functions."""

from __future__ import annotations

import asyncio
from statistics import fmean

from rollweave.clock import Clock, run_virtual
from rollweave.config.scenario import Scenario
from rollweave.rewards.scaling import InstanceUse
from rollweave.simulation.hardware.machines import make_judge
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import run, scenario
from rollweave_experiments.claims.rollart import SERVERLESS
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.setup import Data, pool, task

JOBS = 3


def job(pools: list[Data], seed: int, small: bool) -> Scenario:
    return scenario(
        {
            "seed": seed,
            "cluster": {"pools": [*pools, pool("train", "H800", 8)]},
            "workload": {"tasks": [task("gem-math", judged=True)]},
            "rollout": {"groups_per_step": 4 if small else 84, "group_size": 8, "max_context": 16384},  # batch 84
            "pipeline": {"type": "sync+"},
            # The judge answers in a few words; the platform has the image and scales down at once.
            "judge": {"answer_tokens": {"type": "constant", "value": 64}, "cold_start": 2.0, "idle_seconds": 5.0},
            "training": {"steps": 2 if small else 10},
        }
    )


async def together(scenarios: list[Scenario], clock: Clock) -> tuple[list[SimulationResult], InstanceUse]:
    """Run all jobs on one clock with one judge."""
    judge = make_judge(scenarios[0], clock)
    assert judge is not None
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(one, clock, judge=judge)) for one in scenarios]
    return [one.result() for one in running], judge.use()


def _on_one_clock(scenarios: list[Scenario]) -> tuple[list[SimulationResult], InstanceUse]:
    return run_virtual(lambda clock: together(scenarios, clock))


def measure(seed: int, small: bool) -> Measurement:
    own = [pool("rollout", "H800", 4), pool("reward", "H800", 4)]
    shared = [pool("rollout", "H800", 8), pool("reward", "serverless", 4 * JOBS)]
    alone = [_on_one_clock([job(own, seed + n, small)]) for n in range(JOBS)]
    many, use = _on_one_clock([job(shared, seed + n, small) for n in range(JOBS)])
    dedicated = 100 * sum(one.busy for _, one in alone) / sum(one.paid for _, one in alone)
    functions = 100 * use.busy / use.paid
    faster = fmean(out.rollout_seconds for outs, _ in alone for out in outs) / fmean(o.rollout_seconds for o in many)
    return Measurement(
        {
            "utilisation of dedicated reward GPUs": dedicated,
            "utilisation of shared functions": functions,
            "rollout time, dedicated / functions": faster,
        },
        {
            "utilisation of dedicated reward GPUs": dedicated < 15,
            "utilisation of shared functions": functions > 60,
            "rollout time, dedicated / functions": faster > 1.2,
        },
    )


EXPERIMENT = Experiment(SERVERLESS, measure)
