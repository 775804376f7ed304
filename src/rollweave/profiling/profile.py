"""`rollweave profile`: from a job to what its real parts take on this machine.

    1  play it for a few steps, generation and training taking turns, then with both at once
    2  time the engine, the trainer, the environments and the rewards alone

The result is a simulation file of the job on a device called after it. What passing turns around costs is not timed
but found: `simulation/calibration.py` asks what it must be for the simulation to take as long as the sample did.

The profile file: a simulation file of the job, on a device that was measured.

`rollweave simulate` runs it as it is, with overrides if need be (`pipeline.type=sync`); a cluster file may hold its
device among its own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollweave.config.control import RollArtPipeline, SyncPlusPipeline
from rollweave.config.document import dump
from rollweave.config.environments import EnvironmentConfig, MixtureConfig
from rollweave.config.hardware import DEVICES, Device, HostTimes, Measured, Observed, WeightTimes
from rollweave.config.job import InlineRuntime, Job
from rollweave.config.load import load_file
from rollweave.config.models import ModelSpec
from rollweave.config.scenario import Scenario
from rollweave.config.workload import TaskModel
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.errors import ConfigError
from rollweave.profiling.episodes import environment_waits, reward_seconds, task_models
from rollweave.profiling.sample import Sample, play
from rollweave.profiling.timing import Lengths, measure_engine, measure_trainer
from rollweave.rewards.scorer import Scorer
from rollweave.runtimes.blueprint import Blueprint, cores
from rollweave.runtimes.layout import layout

if TYPE_CHECKING:
    from rollweave.training.trainer import TorchTrainer


SAMPLE_STEPS, WARMUP = 16, 4


def device(name: str, measured: Measured) -> Device:
    """A CPU of the catalogue, with what was measured of it."""
    changes = {"name": f"{name}-machine", "measured": measured, "source": "rollweave profile"}
    return DEVICES["CPU"].model_copy(update=changes)


def scenario_of(job: Job, device: Device, model: ModelSpec, tasks: Sequence[TaskModel]) -> Scenario:
    """The job as a simulation of itself."""
    data = {
        "name": job.name,
        "seed": job.seed,
        "training": {"steps": SAMPLE_STEPS},
        "warmup": WARMUP,
        "model": model.name,
        "models": [_plain(model)],
        "cluster": {"pools": _pools(job, device.name), "devices": [_plain(device)]},
        "workload": {"tasks": [_plain(task) for task in tasks]},
        "rollout": _plain(job.rollout),
        "pipeline": _plain(job.pipeline),
        "weights": _plain(job.weights),
    }
    return Scenario.model_validate_json(json.dumps(data))


def _pools(job: Job, device: str) -> list[dict[str, Any]]:
    engine = {"slots": job.engine.slots, "kv_tokens": job.engine.slots * job.rollout.max_context}
    if isinstance(job.runtime, InlineRuntime) or job.runtime.placement == "colocated":
        return [{"name": "machine", "device": device, "count": 1, "role": "colocated", **engine}]
    return [
        {"name": "engine", "device": device, "count": 1, "role": "rollout", **engine},
        {"name": "trainer", "device": device, "count": 1, "role": "train"},
    ]


def write_profile(profile: Scenario, path: Path) -> Path:
    try:
        path.write_text(HEADER + dump(profile.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the profile to {path}: {error.strerror}; name another file with -o") from error
    return path


def load_profile(path: Path) -> Scenario:
    """Read a profile; refuses a simulation file in which nothing was measured."""
    profile = load_file(path, Scenario)
    if not any(device.measured for device in profile.cluster.devices):
        raise ConfigError(f"{path} is not a profile: no device in it was measured; make one with `rollweave profile`")
    return profile


HEADER = "# Made by `rollweave profile`: a job as a simulation of itself, on this machine.\n"


def _plain(section: Any) -> Any:
    return section.model_dump(mode="json")


STEPS = 6
"""Of each sample, beside the first ones."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that was timed: the job as a simulation, and what two samples of it really took."""

    scenario: Scenario
    in_turns: Observed
    overlapped: Observed | None
    """None: on this runtime nothing overlaps."""


def measure(job: Job, say: Say, steps: int = STEPS) -> Measurements:
    """Takes a minute or two, and wants the machine for itself."""
    job = _quiet(job)
    with tempfile.TemporaryDirectory(prefix="rollweave-profile-") as folder:
        blueprint = _blueprint(job, Path(folder), say)
        say(f"playing {steps} steps, generation and training taking turns")
        taking_turns = play(_in_turns(job), blueprint, steps)
        overlapped = None
        if _overlaps(job):
            say(f"playing {steps} steps, generation beside training")
            overlapped = play(_overlapping(job), blueprint, steps)
        return Measurements(
            _time_parts(job, blueprint, taking_turns, say),
            taking_turns.observed(),
            overlapped.observed() if overlapped else None,
        )


def _time_parts(job: Job, blueprint: Blueprint, sample: Sample, say: Say) -> Scenario:
    import torch

    engine_threads, trainer_threads = threads(job)
    turns = [turn for trajectory in sample.trajectories for turn in trajectory.turns]
    seen = [len(turn.observation.tokens) for turn in turns]
    first = [len(trajectory.turns[0].observation.tokens) for trajectory in sample.trajectories]
    lengths = Lengths(sum(first) // len(first), max(1, sum(seen) // len(seen)))
    say("timing the engine alone")
    torch.set_num_threads(max(engine_threads, trainer_threads))  # can be lowered later, but not raised
    torch.set_num_threads(engine_threads)
    engine = measure_engine(blueprint.engine(), job.engine.slots, lengths)
    say("timing the trainer alone")
    torch.set_num_threads(trainer_threads)
    core = blueprint.trainer()
    trainer = measure_trainer(core, sample.trajectories, job.rollout.groups_per_step)
    say("timing environments and rewards")
    tasks = source(job.environment, job.seed, Path())
    waits = environment_waits(
        blueprint.environments, [tasks.task(n) for n in range(32)], job.rollout.isolation == "process"
    )
    scoring = reward_seconds(Scorer(job.rewards, Path()), sample.trajectories)
    host = HostTimes(message=sample.round_trip)
    measured = Measured(
        model=job.name,
        threads=engine_threads,
        engine=engine,
        trainer=trainer,
        weights=weight_times(sample),
        host=host,
    )
    return scenario_of(
        job, device(job.name, measured), model_spec(job.name, core), task_models(sample.trajectories, waits, scoring)
    )


# --------------------------------------------------------------------------------------------- the job, adapted


def _quiet(job: Job) -> Job:
    """The job without what is not to be timed. Configured latencies are known: they need no measurement."""
    return job.model_copy(
        update={
            "environment": without_latency(job.environment),
            "training": job.training.model_copy(update={"learning_rate": 0.0}),  # episodes stay as they are
            "evaluation": job.evaluation.model_copy(update={"every": 0, "target": None}),
            "checkpoint": job.checkpoint.model_copy(update={"every": 0}),
        }
    )


def without_latency(environment: EnvironmentConfig) -> EnvironmentConfig:
    if not isinstance(environment, MixtureConfig):
        return environment.model_copy(update={"latency": None})
    members = [
        member.model_copy(update={"environment": without_latency(member.environment)}) for member in environment.of
    ]
    return environment.model_copy(update={"of": tuple(members)})


def _in_turns(job: Job) -> Job:
    return job.model_copy(update={"pipeline": SyncPlusPipeline(type="sync+")})


def _overlapping(job: Job) -> Job:
    return job.model_copy(update={"pipeline": RollArtPipeline(type="rollart", alpha=1.0)})


def _overlaps(job: Job) -> bool:
    return not isinstance(job.runtime, InlineRuntime) and job.runtime.placement == "disaggregated"


def threads(job: Job) -> tuple[int, int]:
    """Of engine and trainer, as the runtime would give them."""
    if isinstance(job.runtime, InlineRuntime):
        return (job.runtime.threads or cores(),) * 2
    plan = layout(job, job.runtime)
    return plan.engines[0].threads, plan.trainer_threads


def _blueprint(job: Job, folder: Path, say: Say) -> Blueprint:
    from rollweave.policies.start import start_policy

    say("making or finding the policy")
    environments = EnvironmentFactory.from_config(job.environment, Path())
    tasks = source(job.environment, job.seed, Path())
    policy = start_policy(job, folder / "policy", environments, tasks, lambda what, done, total: None)
    return Blueprint(job, policy, environments)


# -------------------------------------------------------------------------------------------------- what was found


def weight_times(sample: Sample) -> WeightTimes:
    def mean(events: list[dict[str, Any]]) -> float:
        return round(sum(event["seconds"] for event in events) / len(events), 6) if events else 0.0

    return WeightTimes(
        publish=mean(sample.publishes),
        prepare=mean(sample.stagings),
        commit=mean(sample.commits),
    )


def model_spec(name: str, trainer: TorchTrainer) -> ModelSpec:
    config = trainer.model.config
    heads = config.num_attention_heads
    return ModelSpec(
        name=name,
        params=float(sum(parameter.numel() for parameter in trainer.model.parameters())),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", heads),
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        bytes_per_value=4,
        source="the job's policy, float32",
    )
