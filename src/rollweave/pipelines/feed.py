"""Feed: with `training.stream`, groups reach the trainer as they come, and not when the batch is complete.

    whole     play |=== g0 ==|          train            |= g0 g1 g2 =|
                   |=== g1 ======|
                   |=== g2 =============|
    streamed  play |=== g0 ==|          train |= g0 =|
                   |=== g1 ======|                   |= g1 =|
                   |=== g2 =============|                   |= g2 =|

A group goes to the trainer once it is sure to be in the step's batch, so a streamed run trains on the same batches as
one that is not. The weights change at the end of the step only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollweave.observability.events import Emitter
from rollweave.pipelines.journal import Journal
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch, Group


@dataclass(slots=True)
class Feed:
    scheduler: RolloutScheduler
    trainer: Trainer
    journal: Journal
    recorder: Emitter
    _waiting: list[Group] = field(default_factory=list)
    """Final groups that the trainer has not been given yet."""
    _heard: list[int] = field(default_factory=list)
    """Final groups, in the order in which they became so."""
    _done: set[int] = field(default_factory=set)
    """Groups whose gradients are computed."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _done_share: float = 0.0

    async def get_batch(self, step: int) -> Batch:
        """Wait for the batch of a step. The trainer works meanwhile on the groups that are sure to be in it, one after
        the other, so that little is under way when the last one comes."""
        await self.trainer.begin(step, stream=True)
        self._waiting, self._heard, self._done = [], [], set()
        async with asyncio.TaskGroup() as tasks:
            batch = tasks.create_task(self._complete(step), name=f"batch {step}")
            batch.add_done_callback(lambda _: self._news.set())
            while not batch.done():
                if self._waiting:
                    await self._give(step, self._waiting[:1])
                else:
                    self._news.clear()
                    await self._news.wait()
        return batch.result()

    async def train(self, batch: Batch) -> Metrics:
        """Make what is left of the step."""
        if self._waiting:
            await self._give(batch.step, self._waiting)
        return await self.trainer.finish() | {"train/streamed_share": self._done_share}

    async def _complete(self, step: int) -> Batch:
        batch = await self.scheduler.get_batch(step, self._hear)
        heard = set(self._heard)
        self._hear([group for group in batch.groups if group.id not in heard])
        earlier = [group for group in batch.groups if group.id != self._heard[-1]]
        done = _tokens(group for group in earlier if group.id in self._done)
        self._done_share = done / max(1, _tokens(earlier))
        return batch

    def _hear(self, final: list[Group]) -> None:
        self._waiting += final
        self._heard += [group.id for group in final]
        self._news.set()

    async def _give(self, step: int, groups: list[Group]) -> None:
        self._waiting = self._waiting[len(groups) :]
        ids = [group.id for group in groups]
        self.recorder.emit("stream.begin", step=step, groups=ids, tokens=_tokens(groups))
        with self.journal.trainer_works():
            await self.trainer.accumulate(groups)
        self._done.update(ids)
        self.recorder.emit("stream.end", step=step, groups=ids)


def _tokens(groups: Iterable[Group]) -> int:
    return sum(member.length for group in groups for member in group.members)
