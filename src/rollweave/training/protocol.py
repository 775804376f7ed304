"""What the control plane asks of anything that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rollweave.training.checkpoint import DriverFiles
from rollweave.trajectory import Batch
from rollweave.weights.buckets import Fingerprint

Metrics = dict[str, float]


class Trainer(Protocol):
    """Implemented by the torch trainer, the simulated trainer and the client of a trainer elsewhere."""

    async def train_step(self, batch: Batch) -> Metrics:
        """One optimisation step on a checked batch: version n becomes n + 1."""
        ...

    async def publish(self, version: int) -> Fingerprint:
        """Push the current weights to the weight store as `version`; returns their digests."""
        ...

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        """Write a checkpoint: a Hugging Face folder plus `state/`. Atomic: all of it or nothing.

        `driver` is the control plane's state as JSON; it goes to `state/driver.json`.
        """
        ...

    async def load(self, folder: Path) -> None:
        """Continue from a checkpoint that `save` wrote."""
        ...

    async def close(self) -> None: ...
