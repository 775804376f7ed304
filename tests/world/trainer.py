"""A modelled trainer: refuses what a real one refuses, takes a modelled time, learns nothing. It can die: then the call
that is open fails, or the next one, and what it has learned since its checkpoint is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.world.durations import NO_TIME, Duration

from rollweave.clock import Clock
from rollweave.errors import WorkerDied
from rollweave.seeds import generator
from rollweave.simulation.hardware.modelled import simulated_fingerprint
from rollweave.training.checkpoint import DriverFiles, step_of
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
        """What it has learned from."""
        self.restart_seconds = 0.0
        self._learned: list[Batch] = []
        """By the one that died."""
        self._dead = False
        self._ended = asyncio.Event()
        """Its work, or itself."""
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
            await self._work(self._seconds() / 4)

    async def finish(self) -> Metrics:
        batch = Batch(self._batch.step, self._batch.groups)
        await self._work(self._seconds() / 4 if self._stream else self._seconds())
        self.batches.append(batch)
        return {"tokens/trained": float(batch.sampled_tokens)}

    def _seconds(self) -> float:
        return self._step_seconds(generator(self._seed, "train", self._batch.step))

    async def publish(self, version: int) -> Fingerprint:
        await self._work(self._publish_seconds(generator(self._seed, "publish", version)))
        return simulated_fingerprint(version)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        await self._work(self._save_seconds(generator(self._seed, "save", folder.name)))
        self.saved[folder.name] = driver

    async def load(self, folder: Path) -> None:
        await self._work(0.0)
        self.batches = self._learned[: step_of(folder)]

    async def restart(self) -> None:
        await self._clock.sleep(self.restart_seconds)
        self._learned, self.batches = self.batches or self._learned, []
        self._dead = False

    def die(self, seconds: float) -> None:
        """Another one takes so long to start."""
        self.restart_seconds = seconds
        self._dead = True
        self._ended.set()

    async def _work(self, seconds: float) -> None:
        self._ended.clear()
        timer = asyncio.get_running_loop().call_later(seconds, self._ended.set)
        try:
            if not self._dead:
                await self._ended.wait()
        finally:
            timer.cancel()
        if self._dead:
            raise WorkerDied("the trainer was killed", "trainer")
