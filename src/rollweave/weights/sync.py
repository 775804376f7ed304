"""WeightSync: a weight update is a checked protocol.

`publish` pushes a version and has every engine stage and verify it while it goes on generating; `commit` makes
it current between two steps. A checksum that does not come back as it was sent stops the run: training on
answers of unknown weights is worse than not training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rollweave.clock import Clock
from rollweave.engines.protocol import Engine
from rollweave.errors import RollweaveError
from rollweave.observability.events import Emitter
from rollweave.training.protocol import Trainer


class WeightMismatch(RollweaveError):
    """An engine staged other weights than the trainer published."""


class WeightSync:
    def __init__(
        self, trainer: Trainer, engines: Sequence[Engine], clock: Clock, recorder: Emitter, timeout: float
    ) -> None:
        self._trainer = trainer
        self._engines = list(engines)
        self._clock = clock
        self._recorder = recorder
        self._timeout = timeout
        self.version = 0
        self.checksum = ""

    async def publish(self, version: int) -> None:
        """Bring a version to every engine, in the background of generation."""
        started = self._clock.now()
        with self._clock.wait("weight sync", f"version {version} to reach all engines", self._timeout):
            self.checksum = await self._trainer.publish(version)
            echoed = await asyncio.gather(*(engine.prepare(version) for engine in self._engines))
        for number, checksum in enumerate(echoed):
            if checksum != self.checksum:
                raise WeightMismatch(
                    f"engine {number} staged weights {checksum} as version {version}, the trainer published "
                    f"{self.checksum}: what passed between them is corrupt, and the run stops before it trains on it"
                )
        self._recorder.emit("weights.publish", version=version, seconds=self._clock.now() - started)

    async def commit(self, version: int) -> None:
        """suspend → update → resume. What is in flight goes on under the new version."""
        if version == self.version:
            return
        started = self._clock.now()
        with self._clock.wait("weight sync", f"all engines to commit version {version}", self._timeout):
            await asyncio.gather(*(self._commit_one(engine, version) for engine in self._engines))
        self.version = version
        self._recorder.emit("weights.commit", version=version, seconds=self._clock.now() - started)

    async def _commit_one(self, engine: Engine, version: int) -> None:
        await engine.suspend()
        await engine.commit(version)
        await engine.resume()
