"""A simulated trainer on modelled hardware: a step takes as long as its tokens say, and teaches nothing."""

from __future__ import annotations

from pathlib import Path

from rollweave.clock import Clock
from rollweave.seeds import generator
from rollweave.simulation.costs.training import TrainingCosts
from rollweave.simulation.durations import Duration
from rollweave.simulation.world.engine import simulated_fingerprint
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch
from rollweave.weights.fingerprint import Fingerprint


class GpuTrainer:
    def __init__(self, clock: Clock, costs: TrainingCosts, publish_seconds: Duration) -> None:
        self._clock = clock
        self._costs = costs
        self._publish_seconds = publish_seconds
        self.busy_seconds = 0.0

    async def train_step(self, batch: Batch) -> Metrics:
        batch.check()
        seconds = self._costs.seconds(batch)
        await self._clock.sleep(seconds)
        self.busy_seconds += seconds
        return {"tokens/trained": float(batch.sampled_tokens)}

    async def publish(self, version: int) -> Fingerprint:
        await self._clock.sleep(self._publish_seconds(generator(version, "publish")))
        return simulated_fingerprint(version)

    async def save(self, folder: Path, driver: str) -> None:
        pass

    async def load(self, folder: Path) -> None:
        pass

    async def close(self) -> None:
        pass
