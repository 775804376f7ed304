"""From a YAML file and overrides to a checked `Job`, and back to a file that says everything.

Checking is pydantic's, strict, in its JSON mode: a list is a list, an int may stand for a float, and neither
text nor `true` may stand for a number. Relative file names are taken from the job file's folder, wherever
they were written, the command line included.

What `--dry-run` says: the resolved file, and in a few words what it would do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from rollweave.config.base import Section
from rollweave.config.control import RollArtPipeline
from rollweave.config.document import Document, dump, parse
from rollweave.config.job import Job
from rollweave.config.overrides import apply_overrides
from rollweave.config.problems import explain, show
from rollweave.errors import ConfigError, RunFolderError

SectionKind = TypeVar("SectionKind", bound=Section)


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file strictly; every problem is reported with its line, in one `ConfigError`."""
    return load_file(path, Job, overrides, from_files=("cluster",))


def load_file(
    path: Path, kind: type[SectionKind], overrides: Sequence[str] = (), from_files: Sequence[str] = ()
) -> SectionKind:
    """The same of any kind of file: a job, a simulation, a cluster, a plan.

    `from_files`: sections that may be in files of their own, which the key then names (or an override: `key=FILE`).
    """
    return _load(_read(path), str(path), path.absolute().parent, overrides, kind, from_files)


def parse_job(text: str, name: str, base: Path, overrides: Sequence[str] = ()) -> Job:
    """The same from YAML text; `name` stands for the file in messages, `base` is where relative paths begin."""
    return _load(text, name, base, overrides, Job, from_files=("cluster",))


def _load(
    text: str, name: str, base: Path, overrides: Sequence[str], kind: type[SectionKind], from_files: Sequence[str] = ()
) -> SectionKind:
    document = parse(text, name)
    if not isinstance(document.data, dict):
        raise ConfigError(
            f"{name}: expected keys and values like `model:` and `environment:`, got {show(document.data)}"
        )
    named = {key: value for key, _, value in (text.partition("=") for text in overrides) if key in from_files}
    for key in from_files:
        if isinstance(file := named.get(key, document.data.get(key)), str):
            _include(document, key, base / Path(file).expanduser())
    apply_overrides(document, [text for text in overrides if text.partition("=")[0] not in named], kind)
    return _check(document, base, kind)


def _include(document: Document, key: str, file: Path) -> None:
    section = parse(_read(file), str(file))
    document.data[key] = section.data
    document.graft((key,), section)


def dump_job(job: Job) -> str:
    """The whole job as YAML, defaults included; `load_job` reads it back to an equal job from any folder."""
    return dump(job.model_dump(mode="json"))


def _check(document: Document, base: Path, kind: type[SectionKind]) -> SectionKind:
    try:
        return kind.model_validate_json(json.dumps(document.data), context={"base": base})
    except ValidationError as error:
        raise explain(error, document, kind) from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; name a job file, for example recipes/quickstart.yaml") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a UTF-8 text file; a job file is YAML text") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def outline(job: Job) -> str:
    """What training this job would run, in four lines."""
    rollout, training = job.rollout, job.training
    episodes = rollout.groups_per_step * rollout.group_size
    alpha = f" (alpha {job.alpha})" if isinstance(job.pipeline, RollArtPipeline) else ""
    target = "" if job.evaluation.target is None else f", until the held-out reward reaches {job.evaluation.target:g}"
    return "\n".join(
        [
            f"policy       {job.model.type}, in {job.environment.type}",
            f"each step    {rollout.groups_per_step} groups x {rollout.group_size} members = {episodes} episodes "
            f"of at most {rollout.max_turns} turns",
            f"training     {training.steps} steps at learning rate {training.learning_rate:g}{target}",
            f"run by       {job.pipeline.type}{alpha} on {job.runtime.type}",
        ]
    )


def save_resolved(job: Job, folder: Path) -> Path:
    """Write the resolved job into a folder that does not hold one yet."""
    path = folder / "config.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(dump_job(job))
    except FileExistsError:
        raise RunFolderError(f"{path} exists already and is not overwritten; name another folder with --out") from None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}; name another folder with --out") from None
    return path
