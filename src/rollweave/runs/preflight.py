"""What can be found wrong before anything starts: files, classes, functions and models that a job names but that
are not there or not usable. Nothing has been written yet, so the same command works once it is fixed.
"""

from __future__ import annotations

from pathlib import Path

from rollweave.cluster.layout import layout
from rollweave.config.environments import PythonEnvironmentConfig
from rollweave.config.job import HubModel, Job, LocalModel, RayRuntime
from rollweave.environments.registry import members
from rollweave.rewards.function import Scorer
from rollweave.targets import load_target


def check_before_start(job: Job, environment_given: bool = False) -> None:
    """Raises the error the run would meet. A given environment is a Python object: there is nothing to look up."""
    for environment in members(job.environment).values():
        if isinstance(environment, PythonEnvironmentConfig) and not environment_given:
            load_target(environment.target, Path())
    Scorer(job.rewards, Path())
    if isinstance(job.runtime, RayRuntime):
        layout(job, job.runtime)
    if isinstance(job.model, LocalModel | HubModel):
        from rollweave.policies.prepare import find_model

        find_model(job.model)
