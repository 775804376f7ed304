"""A job file in simulation: its own control plane, tasks and limits, on hardware that another file describes.

What the job's agents do is taken from a recorded run of it: how long observations and answers were, and how long
environments took. So the same file trains a small model here, and shows what it would do there with a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollweave.config.cluster import ClusterConfig
from rollweave.config.job import HubModel, Job
from rollweave.config.scenario import Scenario
from rollweave.environments.registry import members, source
from rollweave.errors import ConfigError
from rollweave.observability.events import Sink
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import scenario, simulate
from rollweave.simulation.workloads.recorded import recorded_episodes


def job_scenario(job: Job, recorded: Path, cluster: ClusterConfig | None = None, model: str | None = None) -> Scenario:
    """The job as a simulation file. Without `cluster` and `model` it has those of the job."""
    on = cluster or job.cluster
    if on is None:
        raise ConfigError("the job names no cluster: name the file of the one to simulate with --cluster")
    _check_tasks(job, recorded)
    return scenario(
        {
            "name": job.name,
            "seed": job.seed,
            "model": model or _model_of(job),
            "cluster": on.model_dump(mode="json"),
            "workload": {"trace": str(recorded)},
            "warmup": min(1, job.training.steps - 1),
            "training": {"steps": job.training.steps},
            "rollout": job.rollout.model_dump(mode="json"),
            "pipeline": job.pipeline.model_dump(mode="json"),
            "weights": job.weights.model_dump(mode="json"),
        }
    )


def simulate_job(job: Job, made: Scenario, sinks: Sequence[Sink] = (), every_turn: bool = False) -> SimulationResult:
    """Run what `job_scenario` made of the job: it plays the job's tasks, in their order."""
    return simulate(made, sinks, every_turn, tasks=source(job.environment, job.seed, Path()))


def _check_tasks(job: Job, recorded: Path) -> None:
    kept = recorded_episodes(recorded)
    if missing := [name for name in members(job.environment) if name not in kept]:
        raise ConfigError(
            f"{recorded} holds no finished episode of {', '.join(missing)} (only of {', '.join(kept)}); name a run of "
            "the same job, with a higher logging.transcripts_per_step"
        )


def _model_of(job: Job) -> str:
    if isinstance(job.model, HubModel):
        return job.model.name
    raise ConfigError(
        f"a model of type {job.model.type} is not in the catalogue: say which one to simulate with --model, for "
        "example --model qwen3-8b"
    )
