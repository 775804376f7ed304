"""WeightSync: a weight update is a checked protocol.

    trainer  push ──▶ store                     publish: while engines generate
    engines           prepare: pull, verify, stage ──▶ digests echoed to the driver
    engines  suspend, commit, resume            commit: between two steps

Every phase has a wait of its own, with a name and a deadline. Digests that do not come back as they were sent stop the
run, and so does an engine that holds another version than it was told to commit: training on answers of unknown
weights is worse than not training. With `blocking` transfer engines stand still while a version travels: the
baseline that the background transfer is compared with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from rollweave.clock import Clock, Wait
from rollweave.engines.protocol import Engine, EngineStats
from rollweave.observability.events import Emitter
from rollweave.training.protocol import Trainer
from rollweave.weights.fingerprint import Fingerprint, WeightMismatch

Transfer = Literal["background", "blocking"]


class WeightSync:
    def __init__(
        self,
        trainer: Trainer,
        engines: Sequence[Engine],
        clock: Clock,
        recorder: Emitter,
        timeout: float,
        transfer: Transfer = "background",
    ) -> None:
        self._trainer = trainer
        self._engines = list(engines)
        self._numbers = range(len(self._engines))
        self._clock = clock
        self._recorder = recorder
        self._timeout = timeout
        self._transfer = transfer
        self._published = Fingerprint(-1, "")
        self.version = 0
        """What the engines generate with."""
        self.sync_seconds = 0.0
        """Spent on weights since the start: pushing, preparing, committing."""
        self.sync_exposed_seconds = 0.0
        """The part of it in which the engines stood still."""

    @property
    def checksum(self) -> str:
        """Of the newest version published."""
        return self._published.checksum

    async def publish(self, version: int) -> None:
        """Bring a version to every engine, in the background of generation unless the transfer is blocking."""
        started = self._clock.now()
        if self._transfer == "blocking":
            await asyncio.gather(*(self._suspend(number) for number in self._numbers))
            stood = self._clock.now()
            await self._send(version)
            await asyncio.gather(*(engine.resume() for engine in self._engines))
            self.sync_exposed_seconds += self._clock.now() - stood
        else:
            await self._send(version)
        self.sync_seconds += self._clock.now() - started

    async def commit(self, version: int) -> None:
        """suspend → update → resume. What becomes of answers under way is the engines' `in_flight`."""
        if version == self.version:
            return
        started = self._clock.now()
        stood = await asyncio.gather(*(self._swap(number, version) for number in self._numbers))
        seconds = self._clock.now() - started
        self.version = version
        self.sync_seconds += seconds
        self.sync_exposed_seconds += max(stood)
        self._recorder.emit("weights.commit", version=version, seconds=seconds, exposed_seconds=max(stood))

    async def _send(self, version: int) -> None:
        started = self._clock.now()
        with self._wait(f"the trainer to push version {version}"):
            self._published = await self._trainer.publish(version)
        pushed = self._clock.now()
        echoed = await asyncio.gather(*(self._prepare(number, version) for number in self._numbers))
        prepared = self._clock.now()
        self._recorder.emit(
            "weights.publish",
            version=version,
            checksum=self.checksum,
            echoed=[fingerprint.checksum for fingerprint in echoed],
            buckets=len(self._published.buckets),
            seconds=prepared - started,
            push_seconds=pushed - started,
            prepare_seconds=prepared - pushed,
        )

    async def _prepare(self, number: int, version: int) -> Fingerprint:
        with self._wait(f"engine {number} to prepare version {version}"):
            echoed = await self._engines[number].prepare(version)
        if difference := self._published.differs(echoed):
            raise WeightMismatch(
                f"engine {number} staged other weights than the trainer published as version {version} ({difference}): "
                "what passed between them is corrupt, and the run stops before it trains on it"
            )
        return echoed

    async def _swap(self, number: int, version: int) -> float:
        """Between two steps of one engine, whatever the others do; returns how long it stood still."""
        engine = self._engines[number]
        await self._suspend(number)
        stood = self._clock.now()
        with self._wait(f"engine {number} to commit version {version}"):
            await engine.commit(version)
            self._check(number, version, await engine.stats())  # at once while it stands still
            await engine.resume()
        return self._clock.now() - stood

    def _check(self, number: int, version: int, held: EngineStats) -> None:
        if (held.version, held.checksum) != (version, self.checksum):
            raise WeightMismatch(
                f"engine {number} holds version {held.version} ({held.checksum}) where version {version} "
                f"({self.checksum}) was committed: the run stops before it trains on answers of unknown weights"
            )

    async def _suspend(self, number: int) -> None:
        with self._wait(f"engine {number} to end its step and stand still"):
            await self._engines[number].suspend()

    def _wait(self, what: str) -> Wait:
        return self._clock.wait("weight sync", what, self._timeout)
