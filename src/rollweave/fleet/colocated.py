"""Colocated placement: engines and trainer take turns on the same cores or GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollweave.fleet.fleet import Fleet
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch
from rollweave.weights.buckets import Fingerprint


@dataclass(frozen=True, slots=True)
class AlternatingTrainer:
    """A trainer during whose steps the engines stand still."""

    trainer: Trainer
    fleet: Fleet

    async def train_step(self, batch: Batch) -> Metrics:
        async with self.fleet.standing():
            return await self.trainer.train_step(batch)

    async def publish(self, version: int) -> Fingerprint:
        return await self.trainer.publish(version)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        await self.trainer.save(folder, driver)

    async def load(self, folder: Path) -> None:
        await self.trainer.load(folder)

    async def restart(self) -> None:
        await self.trainer.restart()
