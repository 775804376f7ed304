"""What a real job would take, by simulation: its own pipeline and limits on a machine that was profiled.

A profile is a simulation file (`config/scenario.py`) of the job on a measured device. `predict` puts another job in
its place: the same machine and model, that job's pipeline, rollout and latencies.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollweave.config.job import Job
from rollweave.config.scenario import Scenario
from rollweave.config.workload import Distribution, Normal, TaskModel
from rollweave.environments.latency import latencies
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import scenario, simulate

STEPS, WARMUP = 16, 4
"""Of a predicted run, and how many of them fill the pipeline."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a run will say of itself."""

    step_seconds: float
    get_batch_seconds: float
    train_seconds: float
    engine_idle: float
    trainer_idle: float

    @classmethod
    def of(cls, outcome: SimulationResult) -> Prediction:
        rows = outcome.rows[len(outcome.rows) // 4 :]  # the first ones fill the pipeline

        def mean(key: str) -> float:
            return sum(float(row[key] or 0.0) for row in rows) / len(rows)

        return cls(**{name: mean(key) for name, key in METRICS.items()})

    @property
    def engine_busy_seconds(self) -> float:
        """Of a step."""
        return (1.0 - self.engine_idle) * self.step_seconds

    def metrics(self) -> dict[str, float]:
        return {key: getattr(self, name) for name, key in METRICS.items()}


METRICS = {  # field -> the run's metric
    "step_seconds": "time/step",
    "get_batch_seconds": "time/get_batch",
    "train_seconds": "time/train",
    "engine_idle": "idle/engine",
    "trainer_idle": "idle/trainer",
}


def predict(job: Job, profile: Scenario) -> Prediction:
    """Of this job, on the machine of the profile."""
    return Prediction.of(simulate(as_scenario(job, profile)))


def as_scenario(job: Job, profile: Scenario) -> Scenario:
    """The profile with another job in its place."""
    late = latencies(job.environment)
    waits = {name: Normal(type="normal", mean=each.mean, std=each.std) for name, each in late.items()}
    data = profile.model_dump(mode="json") | {
        "name": job.name,
        "seed": job.seed,
        "training": {"steps": STEPS},
        "warmup": WARMUP,
        "rollout": job.rollout.model_dump(mode="json"),
        "pipeline": job.pipeline.model_dump(mode="json"),
        "weights": job.weights.model_dump(mode="json"),
        "workload": {"tasks": [_late(task, waits.get(task.name)) for task in profile.workload.tasks]},
    }
    return scenario(data)


def _late(task: TaskModel, wait: Distribution | None) -> dict[str, object]:
    """With the latency that the job adds to each call, if it does."""
    changes = {} if wait is None else {"reset_seconds": wait, "step_seconds": wait, "io_seconds": task.step_seconds}
    return task.model_copy(update=changes).model_dump(mode="json")
