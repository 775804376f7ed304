"""A modelled trainer: refuses what a real one refuses, takes a modelled time, learns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.world.durations import NO_TIME, Duration

from rollweave.clock import Clock
from rollweave.seeds import generator
from rollweave.simulation.hardware.modelled import simulated_fingerprint
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch, Group
from rollweave.weights.buckets import Fingerprint


class SimulatedTrainer:
    def __init__(
        self,
        clock: Clock,
        step_seconds: Duration,
        seed: int,
        publish_seconds: Duration = NO_TIME,
        save_seconds: Duration = NO_TIME,
    ) -> None:
        self._clock = clock
        self._step_seconds = step_seconds
        self._publish_seconds = publish_seconds
        self._save_seconds = save_seconds
        self._seed = seed
        self._batch = Batch(0, [])
        self._stream = False
        self.batches: list[Batch] = []
        self.saved: dict[str, DriverFiles] = {}
        """Checkpoint by name -> what it keeps of the driver."""

    async def begin(self, step: int, stream: bool = False) -> None:
        self._batch, self._stream = Batch(step, []), stream

    async def accumulate(self, groups: Sequence[Group]) -> None:
        """Streamed, a part takes as long as a quarter of a step, however large it is."""
        part = Batch(self._batch.step, list(groups))
        part.check()
        self._batch.groups += part.groups
        if self._stream:
            await self._clock.sleep(self._seconds() / 4)

    async def finish(self) -> Metrics:
        batch = Batch(self._batch.step, self._batch.groups)
        await self._clock.sleep(self._seconds() / 4 if self._stream else self._seconds())
        self.batches.append(batch)
        return {"tokens/trained": float(batch.sampled_tokens)}

    def _seconds(self) -> float:
        return self._step_seconds(generator(self._seed, "train", self._batch.step))

    async def publish(self, version: int) -> Fingerprint:
        await self._clock.sleep(self._publish_seconds(generator(self._seed, "publish", version)))
        return simulated_fingerprint(version)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        await self._clock.sleep(self._save_seconds(generator(self._seed, "save", folder.name)))
        self.saved[folder.name] = driver

    async def load(self, folder: Path) -> None:
        pass
