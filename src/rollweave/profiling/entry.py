"""The profile file: a simulation file of the job, on a device that was measured.

`rollweave simulate` runs it as it is, with overrides if need be (`pipeline.type=sync`); a cluster file may hold its
device among its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollweave.config.document import dump
from rollweave.config.hardware import DEVICES, Device
from rollweave.config.job import InlineRuntime, Job
from rollweave.config.load import load_file
from rollweave.config.measured import Measured
from rollweave.config.models import ModelSpec
from rollweave.config.scenario import Scenario
from rollweave.config.workload import TaskModel
from rollweave.errors import ConfigError

STEPS, WARMUP = 16, 4


def device(name: str, measured: Measured) -> Device:
    """A CPU of the catalogue, with what was measured of it."""
    changes = {"name": f"{name}-machine", "measured": measured, "source": "rollweave profile"}
    return DEVICES["CPU"].model_copy(update=changes)


def scenario_of(job: Job, device: Device, model: ModelSpec, tasks: Sequence[TaskModel]) -> Scenario:
    """The job as a simulation of itself."""
    data = {
        "name": job.name,
        "seed": job.seed,
        "training": {"steps": STEPS},
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
