"""Colocated placement: engines and trainer take turns on the same cores or GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rollweave.engines.protocol import Engine
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch
from rollweave.weights.buckets import Fingerprint


class TakingTurns:
    """A trainer during whose steps the engines stand still."""

    def __init__(self, trainer: Trainer, engines: Sequence[Engine]) -> None:
        self._trainer = trainer
        self._engines = list(engines)

    async def train_step(self, batch: Batch) -> Metrics:
        await asyncio.gather(*(engine.suspend() for engine in self._engines))
        try:
            return await self._trainer.train_step(batch)
        finally:
            await asyncio.gather(*(engine.resume() for engine in self._engines))

    async def publish(self, version: int) -> Fingerprint:
        return await self._trainer.publish(version)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        await self._trainer.save(folder, driver)

    async def load(self, folder: Path) -> None:
        await self._trainer.load(folder)

    async def close(self) -> None:
        await self._trainer.close()
