"""Writes and finds checkpoints: a Hugging Face folder that `transformers` and vLLM load, plus `state/` for a resume.

    checkpoints/step-12/config.json, model.safetensors, tokenizer.json, ...
    checkpoints/step-12/state/trainer.json     version
    checkpoints/step-12/state/trainer/         optimiser, value head, adapter; every rank has written its part
    checkpoints/step-12/state/driver.json      the control plane: ledgers, cursor, groups not trained yet
    checkpoints/step-12/state/driver.npz       their tokens and log-probs
    checkpoints/step-12/state/manifest.json    size and digest of every other file

A checkpoint appears all at once (`atomic_folder`), so a folder called `step-N` was complete when it was made; the
manifest shows whether it still is. This file does not import torch, because the driver uses it to find and to prune
checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollweave.errors import RunFolderError
from rollweave.policies.atomic import PARTIAL, atomic_folder

STATE = Path("state")
DRIVER = STATE / "driver.json"
SIDECAR = STATE / "driver.npz"
MANIFEST = STATE / "manifest.json"


@dataclass(frozen=True, slots=True, eq=False)
class DriverFiles:
    """What a checkpoint keeps of the control plane: a small text, and the arrays that the text names by their place."""

    text: str = "{}"
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


NO_DRIVER = DriverFiles()
"""Of a trainer that works without a control plane."""


def write(folder: Path, fill: Callable[[Path], None], driver: DriverFiles = NO_DRIVER) -> None:
    """Let `fill` write a new checkpoint. It exists completely or not at all, and earlier ones are not changed."""
    if folder.exists():
        raise RunFolderError(f"checkpoint {folder} exists already and is never overwritten; choose another folder")
    try:
        with atomic_folder(folder) as partial:
            (partial / STATE).mkdir()
            fill(partial)
            (partial / DRIVER).write_text(driver.text, encoding="utf-8")
            np.savez(partial / SIDECAR, **driver.arrays)  # type: ignore[arg-type]
            (partial / MANIFEST).write_text(json.dumps(_manifest(partial), indent=1), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"cannot write checkpoint {folder}: {error.strerror or error}; free space on that disk or choose another "
            "place with --out (earlier checkpoints are intact)"
        ) from error


def read_driver(folder: Path) -> DriverFiles:
    text = (folder / DRIVER).read_text(encoding="utf-8")
    if not (folder / SIDECAR).exists():  # of an older version; its text says so too
        return DriverFiles(text)
    with np.load(folder / SIDECAR, allow_pickle=False) as arrays:
        return DriverFiles(text, dict(arrays))


def damage(folder: Path) -> str | None:
    """Say what is wrong with a checkpoint; None if every file is as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, digest) in manifest.items():
            if (found := (folder / name).stat().st_size) != size:
                return f"{name} has {found} bytes instead of {size}"
            if _digest(folder / name) != digest:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"it cannot be read ({error})"
    return None


def newest(folder: Path) -> Path | None:
    """The checkpoint of the highest step, or None."""
    return next(iter(newest_first(folder)), None)


def newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("step-*") if path.name[len("step-") :].isdecimal() and path.is_dir()]
    return sorted(found, key=step_of, reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints, and half-written ones of a killed process."""
    for old in newest_first(folder)[keep:]:
        shutil.rmtree(old)
    for partial in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(partial)


def set_aside(folder: Path) -> Path:
    """Rename a checkpoint, so that a resume does not use it. An older one set aside under this name is deleted."""
    aside = folder.with_name(f"set-aside-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _manifest(folder: Path) -> dict[str, tuple[int, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, _digest(path)) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
