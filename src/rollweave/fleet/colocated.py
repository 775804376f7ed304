"""Colocated placement: engines and trainer take turns on the same cores or GPUs."""

from __future__ import annotations

from pathlib import Path

from rollweave.fleet.fleet import Fleet
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch
from rollweave.weights.buckets import Fingerprint


class TakingTurns:
    """A trainer during whose steps the engines stand still."""

    def __init__(self, trainer: Trainer, fleet: Fleet) -> None:
        self._trainer = trainer
        self._fleet = fleet

    async def train_step(self, batch: Batch) -> Metrics:
        async with self._fleet.standing():
            return await self._trainer.train_step(batch)

    async def publish(self, version: int) -> Fingerprint:
        return await self._trainer.publish(version)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        await self._trainer.save(folder, driver)

    async def load(self, folder: Path) -> None:
        await self._trainer.load(folder)
