"""Measures train steps on the job's own trajectories: what a step costs by itself, and what each token adds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rollweave.config.measured import TrainerTimes
from rollweave.trajectory import Batch, Group, Trajectory

if TYPE_CHECKING:
    from rollweave.training.trainer import TorchTrainer

REPEATS = 3


def measure_trainer(trainer: TorchTrainer, trajectories: Sequence[Trajectory], groups_per_step: int) -> TrainerTimes:
    """The times of a trainer with nothing else to do, from a small batch and a whole one."""
    groups = grouped(trajectories)
    whole, small = groups[:groups_per_step], groups[: max(1, groups_per_step // 4)]
    trainer.train_step(Batch(0, small))  # the first one pays for allocations
    times = {len(part): _seconds(trainer, part) for part in (small, whole)}
    tokens = {len(part): sum(t.length for group in part for t in group.members) for part in (small, whole)}
    return line(tokens[len(small)], times[len(small)], tokens[len(whole)], times[len(whole)])


def line(tokens: int, seconds: float, more_tokens: int, more_seconds: float) -> TrainerTimes:
    """Through two measurements; without a fixed part where they would ask for a negative one."""
    if more_tokens == tokens:
        return TrainerTimes(step=0.0, token=seconds / tokens)
    slope = max(0.0, (more_seconds - seconds) / (more_tokens - tokens))
    fixed = more_seconds - slope * more_tokens
    if fixed < 0:
        return TrainerTimes(step=0.0, token=more_seconds / more_tokens)
    return TrainerTimes(step=fixed, token=slope)


def grouped(trajectories: Sequence[Trajectory]) -> list[Group]:
    """The groups they came in."""
    ordered = sorted(trajectories, key=lambda t: (t.group, t.member))
    return [
        Group(number, members[0].task, members)
        for number, members in ((n, list(run)) for n, run in groupby(ordered, key=lambda t: t.group))
    ]


def _seconds(trainer: TorchTrainer, groups: list[Group]) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        trainer.train_step(Batch(trainer.version, groups))
        seconds.append(time.perf_counter() - began)
    return min(seconds)  # the others met something else on the machine
