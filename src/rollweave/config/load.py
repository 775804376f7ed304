"""Loads a YAML file with overrides as a checked `Job` (or another kind of file), and writes the resolved job back.

Pydantic does the checking, strictly, in its JSON mode: an int may stand for a float, but neither text nor `true`
may stand for a number. Relative file names start from the job file's folder, also those given on the command line.

`outline` and `save_resolved` serve `--dry-run` and the run folder: what the job would do in a few words, and the file
with every default written out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from rollweave.config import schema
from rollweave.config.base import Section
from rollweave.config.document import Document, dotted, dump, parse
from rollweave.config.job import HubModel, Job, LocalModel, ModelConfig
from rollweave.config.losses import RatioLoss
from rollweave.config.overrides import apply_overrides, parse_override
from rollweave.config.problems import explain, show
from rollweave.config.schema import KeyPlace
from rollweave.errors import ConfigError, RunFolderError

SectionKind = TypeVar("SectionKind", bound=Section)


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file strictly; every problem is reported with its line, in one `ConfigError`."""
    return load_file(path, Job, overrides)


def load_file(path: Path, kind: type[SectionKind], overrides: Sequence[str] = ()) -> SectionKind:
    """Read any kind of file strictly: a job, a simulation, a cluster, a plan."""
    return parse_text(_read(path), str(path), path.absolute().parent, kind, overrides)


def parse_text(text: str, name: str, base: Path, kind: type[SectionKind], overrides: Sequence[str] = ()) -> SectionKind:
    """Read YAML text as a file. Messages call the text `name`; relative file names start from `base`."""
    document = parse(text, name)
    if not isinstance(document.data, dict):
        raise ConfigError(
            f"{name}: expected keys and values like `model:` and `environment:`, got {show(document.data)}"
        )
    return check_document(document, base, kind, overrides)


def check_document(
    document: Document, base: Path, kind: type[SectionKind], overrides: Sequence[str] = ()
) -> SectionKind:
    """Make the section of a document's data, with the overrides."""
    whole = KeyPlace((), kind)
    document.data = _expanded(document, whole, document.data)
    changes = [parse_override(text) for text in overrides]
    replaced = [change for change in changes if len(change.keys) == 1 and change.keys[0] in kind.from_files]
    if replaced:
        apply_overrides(document, replaced, kind)
    for key in kind.from_files:
        if isinstance(file := document.data.get(key), str):
            path = base / Path(file).expanduser()
            section = parse(_read(path), str(path))
            document.data[key] = section.data
            document.graft((key,), section)
    if inside := [change for change in changes if change not in replaced]:
        apply_overrides(document, inside, kind)
    document.data = _expanded(document, whole, document.data)
    try:
        return kind.model_validate_json(json.dumps(document.data), context={"base": base})
    except ValidationError as error:
        raise explain(error, document, kind) from None


def _expanded(document: Document, place: KeyPlace, data: Any) -> Any:
    """Expand every section that is written as one text, so that overrides can set its keys."""
    if isinstance(data, str) and (in_short := schema.plain_text(place.type)):
        try:
            return in_short.expand(data)
        except ValueError as error:
            raise ConfigError(f"{document.origin(place.path)}: {dotted(place.path)}: {error}") from None
    if isinstance(data, list):
        return [_expanded(document, schema.child(place, index), item) for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    place = schema.chosen(place, data)
    return {key: _expanded(document, schema.child(place, key), value) for key, value in data.items()}


def dump_job(job: Job) -> str:
    """Write the whole job as YAML, defaults included. `load_job` reads it back to an equal job from any folder."""
    return dump(job.model_dump(mode="json"))


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
    """Say in five lines what training this job would run."""
    rollout, training = job.rollout, job.training
    episodes = rollout.groups_per_step * rollout.group_size
    target = "" if job.evaluation.target is None else f", until the held-out reward reaches {job.evaluation.target:g}"
    return "\n".join(
        [
            f"policy       {model_in_words(job.model)}, in {job.environment.type}",
            f"each step    {rollout.groups_per_step} groups x {rollout.group_size} members = {episodes} episodes "
            f"of at most {rollout.max_turns} turns",
            f"training     {training.steps} steps at learning rate {training.learning_rate:g}{target}",
            f"loss         {loss_in_words(job)}",
            f"run by       {job.pipeline.type} on {job.runtime.type}",
        ]
    )


def model_in_words(model: ModelConfig) -> str:
    """The name of the model, or of its folder."""
    if isinstance(model, HubModel):
        return model.name
    return Path(model.path).name if isinstance(model, LocalModel) else model.type


def loss_in_words(job: Job) -> str:
    """Say which loss is trained, what its ratio divides by and how stale the data may be."""
    loss = job.training.loss
    over = {
        "behaviour": ", its ratio over the engine's log-probs (denominator: behaviour)",
        "proximal": ", its ratio over the trainer's own log-probs before the step (denominator: proximal)",
    }
    ratio = over[loss.denominator] if isinstance(loss, RatioLoss) else ""
    return f"{loss.type}{ratio}; staleness bound (alpha) {job.pipeline.alpha:g}"


def save_resolved(job: Job, folder: Path) -> Path:
    """Write the resolved job into a folder that does not have one yet."""
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
