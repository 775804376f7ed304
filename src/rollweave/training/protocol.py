"""The protocol through which the control plane uses a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rollweave.training.checkpoint import DriverFiles
from rollweave.trajectory import Batch
from rollweave.weights.buckets import Fingerprint

Metrics = dict[str, float]


class Trainer(Protocol):
    """Turns batches into versions. The torch trainer, the simulated trainer and the Ray client implement it.

    Each call raises WorkerDied if the trainer, or a part of it, is gone.
    """

    async def train_step(self, batch: Batch) -> Metrics:
        """Train on a checked batch: version n becomes n + 1."""
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
