"""Checkpoints: a Hugging Face folder that `transformers` and vLLM load as it is, plus `state/` to continue from.

    checkpoints/step-12/config.json, model.safetensors, tokenizer.json, ...
    checkpoints/step-12/state/trainer.pt

A checkpoint appears all at once (`atomic_folder`), so whatever is called `step-N` is whole. This file knows folders
and disks, not torch: the driver uses it to find and to prune checkpoints.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from rollweave.errors import RunFolderError
from rollweave.policies.atomic import PARTIAL, atomic_folder

_NAME = re.compile(r"step-(\d+)")


def write(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a new checkpoint; it exists whole or not at all, and earlier ones stay untouched."""
    if folder.exists():
        raise RunFolderError(f"checkpoint {folder} exists already and is never overwritten; choose another folder")
    try:
        with atomic_folder(folder) as partial:
            fill(partial)
    except OSError as error:
        raise RunFolderError(
            f"cannot write checkpoint {folder}: {error.strerror or error}; free space on that disk or choose another "
            "place with --out (earlier checkpoints are intact)"
        ) from error


def newest(folder: Path) -> Path | None:
    """The checkpoint of the highest step, or None."""
    return max(_all(folder), key=_step, default=None)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints, and what a killed process left half written."""
    for old in sorted(_all(folder), key=_step)[:-keep]:
        shutil.rmtree(old)
    for partial in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(partial)


def _all(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
