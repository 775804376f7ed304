"""The trainer's part of a checkpoint that only a resume needs. All ranks write it, each its shards; any number read it.

state/trainer.json    the version, and which parts there are
state/trainer/        moments of the optimiser, value head, adapter (torch.distributed.checkpoint)
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rollweave.errors import RunFolderError
from rollweave.training.ranks import Ranks

NOTE = Path("state", "trainer.json")
PARTS = Path("state", "trainer")


def write_parts(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write what this rank holds of each tensor; all ranks call it, and none returns before all have written.

    Raises OSError on every rank if one could not write."""
    try:
        with _quietly():
            save(dict(tensors), storage_writer=_Writer(folder / PARTS), no_dist=ranks.alone)
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        where = "" if ranks.alone else f" (rank {rank})"
        raise OSError(getattr(cause, "errno", None), f"{_reason(cause)}{where}") from cause


def read_parts(folder: Path, into: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Fill these tensors, or the shards of them that this rank holds."""
    try:
        with _quietly():
            load(dict(into), storage_reader=FileSystemReader(folder / PARTS), no_dist=ranks.alone)
    except CheckpointException as error:
        _, (cause, _) = next(iter(error.failures.items()))
        raise RunFolderError(
            f"{folder / PARTS} cannot be read: {_reason(cause)}; resume from an earlier checkpoint"
        ) from cause


class _Writer(FileSystemWriter):
    def write_data(self, *arguments: Any) -> Any:
        """A full disk is an OSError, also where torch stumbles over it once more while it closes the file."""
        try:
            return super().write_data(*arguments)
        except RuntimeError as error:
            first: BaseException | None = error
            while first is not None and not isinstance(first, OSError):
                first = first.__context__
            raise first or error from error


@contextmanager
def _quietly() -> Iterator[None]:
    """torch warns of a single process, though it is told to expect one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def names_of_parts(folder: Path) -> set[str]:
    return set(FileSystemReader(folder / PARTS).read_metadata().state_dict_metadata)


def write_note(folder: Path, note: Mapping[str, Any]) -> None:
    (folder / NOTE).write_text(json.dumps(note), encoding="utf-8")


def read_note(folder: Path) -> dict[str, Any]:
    if not (folder / NOTE).is_file():
        raise RunFolderError(f"{folder} is not a checkpoint to resume from: it lacks {NOTE}")
    note: dict[str, Any] = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    return note


def moments(policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the names of the parameters; empty before the first update."""
    return {
        f"optimizer.{name}.{key}": value
        for name, parameter in policy.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def make_moments(policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give a new optimiser the state that its first update would make, to be filled from a checkpoint."""
    for parameter in policy.parameters():
        if parameter.requires_grad:
            step = torch.zeros((), dtype=torch.float32, device=parameter.device)
            optimizer.state[parameter] = {
                "step": step,
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)
