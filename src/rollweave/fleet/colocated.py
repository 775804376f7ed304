"""Colocated placement: engines and trainer take turns on the same cores or GPUs.

With `sleep` they also take turns in the device's memory. The trainer's turn then lasts until its new weights are in the
store: if it ended with the step, both would have to be there when the weights are pushed.

    engines   |= awake ====|  asleep ............|= awake ===
    trainer   asleep ......|= finish =|= publish =| asleep ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rollweave.fleet.fleet import Fleet
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Group
from rollweave.weights.buckets import Fingerprint


@dataclass(frozen=True, slots=True)
class AlternatingTrainer:
    """A trainer during whose steps the engines stand still."""

    trainer: Trainer
    fleet: Fleet
    sleep: bool = False
    _turn: AsyncExitStack = field(default_factory=AsyncExitStack)
    """With `sleep`: between the end of a step and that of its publishing."""

    async def begin(self, step: int, stream: bool = False) -> None:
        await self.trainer.begin(step, stream)

    async def accumulate(self, groups: Sequence[Group]) -> None:
        """Not streamed, as the configuration sees to: nothing is computed before `finish`."""
        await self.trainer.accumulate(groups)

    async def finish(self) -> Metrics:
        if self.sleep:
            await self._turn.enter_async_context(self.fleet.standing(asleep=True))
            try:
                return await self.trainer.finish()
            except BaseException:  # there will be nothing to publish
                await self._turn.aclose()
                raise
        async with self.fleet.standing():
            return await self.trainer.finish()

    async def publish(self, version: int) -> Fingerprint:
        async with self._alone(), self._turn:
            return await self.trainer.publish(version)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        async with self._alone():
            await self.trainer.save(folder, driver)

    async def load(self, folder: Path) -> None:
        async with self._alone(), self._turn:
            await self.trainer.load(folder)

    async def restart(self) -> None:
        await self._turn.aclose()
        await self.trainer.restart()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Around what wakes the trainer: with `sleep` the engines sleep meanwhile."""
        async with AsyncExitStack() as turn:
            if self.sleep:
                await turn.enter_async_context(self.fleet.standing(asleep=True))
            yield
