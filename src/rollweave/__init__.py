"""Rollweave: reinforcement-learning post-training of LLM agents. One control plane, two clocks.

import rollweave
run = rollweave.train(env="frozen_lake", model="tiny", training={"steps": 20})

Names are imported when they are first used, so `import rollweave` is quick and loads neither torch nor ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollweave.api import Run, evaluate, plan, simulate, train
    from rollweave.config.job import Job
    from rollweave.config.load import load_job
    from rollweave.environments.protocol import Environment, StepResult
    from rollweave.errors import RollweaveError
    from rollweave.rewards.scorer import RewardResult
    from rollweave.tasks import Task
    from rollweave.trajectory import Batch, Group, Trajectory

__version__ = "0.1.0"

_HOMES = {
    "api": ("Run", "evaluate", "plan", "simulate", "train"),
    "config.job": ("Job",),
    "config.load": ("load_job",),
    "environments.protocol": ("Environment", "StepResult"),
    "errors": ("RollweaveError",),
    "rewards.scorer": ("RewardResult",),
    "tasks": ("Task",),
    "trajectory": ("Batch", "Group", "Trajectory"),
}

__all__ = [
    "Batch",
    "Environment",
    "Group",
    "Job",
    "RewardResult",
    "RollweaveError",
    "Run",
    "StepResult",
    "Task",
    "Trajectory",
    "evaluate",
    "load_job",
    "plan",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"rollweave.{home}"), name)
    raise AttributeError(f"module 'rollweave' has no attribute {name!r}")
