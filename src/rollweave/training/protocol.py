"""The protocol through which the control plane uses a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rollweave.training.checkpoint import DriverFiles
from rollweave.trajectory import Group
from rollweave.weights.buckets import Fingerprint

Metrics = dict[str, float]


class Trainer(Protocol):
    """Turns batches into versions. The torch trainer, the simulated trainer and the Ray client implement it.

    A train step is `begin`, then `accumulate` once or more, then `finish`. Each call raises WorkerDied if the trainer,
    or a part of it, is gone.
    """

    async def begin(self, step: int, stream: bool = False) -> None:
        """Open train step `step`. What is left of a step that was never finished is dropped.

        `stream`: `accumulate` computes the gradients of its groups at once. Otherwise `finish` does, when it has seen
        the whole batch. The update is the same up to rounding.
        """
        ...

    async def accumulate(self, groups: Sequence[Group]) -> None:
        """Give the step groups of its batch, in any order. They are checked, and the weights do not change."""
        ...

    async def finish(self) -> Metrics:
        """Update the weights from all groups of the step: version n becomes n + 1."""
        ...

    async def publish(self, version: int) -> Fingerprint:
        """Push the current weights to the weight store as `version`; returns their digests, and how they score the
        probe."""
        ...

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        """Write a checkpoint, completely or not at all: a Hugging Face folder plus `state/`.

        `driver` is the control plane's state; it goes to `state/driver.json` and `state/driver.npz`.
        """
        ...

    async def load(self, folder: Path) -> None:
        """Continue from a checkpoint that `save` wrote."""
        ...

    async def restart(self) -> None:
        """After one of the calls raised WorkerDied: start again, with the policy that the run began with."""
        ...
