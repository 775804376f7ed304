"""`rollweave profile`: measures what the real parts of a job take on this machine, and writes the profile file.

    1  play the job for a few steps, first with generation and training alternating, then with both at once
    2  time the engine, the trainer, the environments and the rewards alone

The profile is a simulation file of the job, on a device that is named after the job and has the measured times.
`rollweave simulate` runs it, with overrides if wanted (`pipeline.type=sync`), and a cluster file may use its device.
The cost of passing turns through hosts is not timed: `simulation/calibration.py` finds the value with which the
simulation takes as long as the sample did.
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
from rollweave.config.hardware import DEVICES, Device, HostTimes, Measured, Observed
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


STEPS = 6
"""The measured steps of each sample; a few more are played before them."""

Say = Callable[[str], None]
"""Called with a few words on what is measured next."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured: the job as a simulation, and what the steps of two real samples took."""

    scenario: Scenario
    alternating: Observed
    overlapped: Observed | None
    """None if nothing overlaps on the job's runtime."""


def measure(job: Job, say: Say, steps: int = STEPS) -> Measurements:
    """Measure the job. This takes a minute or two; nothing else should run on the machine meanwhile."""
    if job.engine.type != "torch":
        raise ConfigError(
            f"engine.type={job.engine.type}: `rollweave profile` can time the parts of the torch engine only; profile "
            "with engine.type=torch"
        )
    job = _quiet(job)
    with tempfile.TemporaryDirectory(prefix="rollweave-profile-") as folder:
        blueprint = _blueprint(job, Path(folder), say)
        say(f"playing {steps} steps, generation and training alternating")
        alternating = play(blueprint, SyncPlusPipeline(type="sync+"), steps)
        overlapped = None
        if not isinstance(job.runtime, InlineRuntime) and job.runtime.placement == "disaggregated":
            say(f"playing {steps} steps, generation beside training")
            overlapped = play(blueprint, RollArtPipeline(type="rollart", alpha=1.0), steps).observed
        return Measurements(_time_parts(job, blueprint, alternating, say), alternating.observed, overlapped)


def _time_parts(job: Job, blueprint: Blueprint, sample: Sample, say: Say) -> Scenario:
    import torch

    engine_threads, trainer_threads = threads(job)
    turns = [turn for trajectory in sample.trajectories for turn in trajectory.turns]
    seen = [len(turn.observation.tokens) for turn in turns]
    first = [len(trajectory.turns[0].observation.tokens) for trajectory in sample.trajectories]
    lengths = Lengths(sum(first) // len(first), max(1, sum(seen) // len(seen)))
    say("timing the engine alone")
    torch.set_num_threads(max(engine_threads, trainer_threads))  # the number can be lowered later, but not raised
    torch.set_num_threads(engine_threads)
    engine = measure_engine(blueprint.engine(), job.engine.slots, lengths)
    say("timing the trainer alone")
    torch.set_num_threads(trainer_threads)
    core = blueprint.trainer()
    trainer = measure_trainer(core, sample.trajectories, job.rollout.groups_per_step)
    say("timing environments and rewards")
    tasks = source(job.environment, job.seed, Path())
    waits = environment_waits(blueprint.environments, tasks, job.rollout.isolation == "process")
    scoring = reward_seconds(Scorer(job.rewards, Path()), sample.trajectories)
    measured = Measured(
        model=job.name,
        threads=engine_threads,
        engine=engine,
        trainer=trainer,
        weights=sample.weights,
        host=HostTimes(message=sample.round_trip),
    )
    models = task_models(sample.trajectories, waits, scoring)
    return scenario_of(job, device(job.name, measured), model_spec(job.name, core), models)


# ------------------------------------------------------------------------------- the job, changed for measuring


def _quiet(job: Job) -> Job:
    """The job without the parts that are not timed: evaluation, checkpoints, and latencies, which are known."""
    return job.model_copy(
        update={
            "environment": without_latency(job.environment),
            "training": job.training.model_copy(update={"learning_rate": 0.0}),  # so that episodes keep their lengths
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


def threads(job: Job) -> tuple[int, int]:
    """The threads of engine and trainer, as the runtime would set them."""
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


# ------------------------------------------------------------------------------------------ the profile file

SAMPLE_STEPS, WARMUP = 16, 4
"""Steps of the simulation, and how many of them its averages leave out."""

HEADER = "# Made by `rollweave profile`: a simulation of a job with the times measured on this machine.\n"


def device(name: str, measured: Measured) -> Device:
    """The CPU of the catalogue, with the measured times."""
    changes = {"name": f"{name}-machine", "measured": measured, "source": "rollweave profile"}
    return DEVICES["CPU"].model_copy(update=changes)


def scenario_of(job: Job, device: Device, model: ModelSpec, tasks: Sequence[TaskModel]) -> Scenario:
    """Make the simulation file of the job."""
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
    """Read a profile. A simulation file without a measured device is refused."""
    profile = load_file(path, Scenario)
    if not any(device.measured for device in profile.cluster.devices):
        raise ConfigError(f"{path} is not a profile: no device in it was measured; make one with `rollweave profile`")
    return profile


def _plain(section: Any) -> Any:
    return section.model_dump(mode="json")
