"""The papers' tasks as presets (`presets.yaml`), which a task of a file may begin from."""

from __future__ import annotations

from pathlib import Path

from rollweave.config.catalogue import Catalogue
from rollweave.config.workload import TaskModel
from rollweave.errors import ConfigError

PRESETS = Catalogue(TaskModel, Path(__file__).with_name("presets.yaml"))


def resolve(task: TaskModel) -> TaskModel:
    """A task of the file over the preset it names."""
    if not task.preset:
        return task
    if task.preset not in PRESETS:
        raise ConfigError(f"workload.tasks: no preset {task.preset}; known: {', '.join(sorted(PRESETS))}")
    said = {name: getattr(task, name) for name in task.model_fields_set - {"preset"}}
    return PRESETS[task.preset].model_copy(update=said)
