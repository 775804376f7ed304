"""Permits: the right to use a pool for one phase, for jobs that share pools with others.

A pipeline asks before each phase. Under the daemon (`rollweave submit`) the daemon says when: asking for the next
permit hands the last one back, so that a job never computes without one. While a job waits, all that it needs stays in
its process, so that the next phase starts warm: on the device or, with `sleep`, in main memory (see
`fleet/colocated.py`).

Tail: the last answers of a batch move together, and another job gets the other rollout nodes.

    node 0   A ============= .. its long ones ..|B =====
    node 1   A =============|B =================
                      80 % done

A's training still waits for every answer, so A is not faster; B is, which begins on the nodes that are free and goes on
on all of them once A has left. Done only where pools are shared and another job waits; planning never counts on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol

from rollweave.clock import Clock
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import Emitter
from rollweave.pipelines.journal import Journal
from rollweave.rollout.evaluation import Evaluator
from rollweave.rollout.scheduler import RolloutScheduler

SharedPool = Literal["rollout", "train"]


class PermitSource(Protocol):
    """Says when a job may use pools that it shares with others. A source that takes no part in tails leaves the last
    three methods as they are."""

    async def take(self, pool: SharedPool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
        """Hand back the last permit and wait for one on this pool. So far `step` steps are trained; the phase that ends
        here made `tokens`. `partly`: it may begin on some of its nodes; returns on how many, if the others come later.
        """

    async def widened(self) -> None:
        """Wait until this permit has all its nodes."""
        return

    async def awaited(self, keep: int) -> None:
        """Wait until another job could begin if this permit kept its first `keep` nodes only."""
        await asyncio.Event().wait()

    async def narrow(self, keep: int) -> None:
        """Hand back all nodes of this permit but the first `keep`."""
        return


MakePermits = Callable[[Clock], PermitSource]
"""A permit source needs the clock of the loop that asks."""


THRESHOLD = 0.8
"""Share of a batch's episodes that have ended when the rest is a tail (RollMux)."""
TAIL_NODES = 0.25
"""Share of the nodes that a tail keeps, one at least."""


@dataclass(frozen=True, slots=True)
class Tail:
    fleet: Fleet
    nodes: int
    """Of the job: one for each engine that it began with, also while some of them are gone."""
    source: PermitSource
    scheduler: RolloutScheduler
    recorder: Emitter

    async def run(self, partly: bool) -> None:
        """Beside the wait for a batch; given up when the batch is there. `partly`: the permit began on some nodes."""
        if partly:
            await self.source.widened()
            await self.use()
        keep = ceil(TAIL_NODES * self.nodes)
        await self.scheduler.ended(THRESHOLD)
        await self.source.awaited(keep)
        await self.scheduler.ended(THRESHOLD)  # still: groups may have failed, and others begun in their place
        await self.use(keep)
        await self.source.narrow(keep)

    async def use(self, nodes: int | None = None) -> None:
        """From now on only the first so many engines; None: all. Returns when the others hold nothing any more."""
        before, ids = self.fleet.moves, [entry.id for entry in self.fleet.living()]
        used = ids[:nodes]
        self.fleet.use(used)
        await self.fleet.emptied(ids[len(used) :])
        if moved := self.fleet.moves - before:
            self.recorder.emit("requests.move", moved=moved, nodes=len(used))


@dataclass(slots=True)
class PermitGate:
    """Asks for a pool before each phase of the loop. A job whose pools are its own has no source, and passes."""

    source: PermitSource | None
    fleet: Fleet
    evaluation: Evaluator
    journal: Journal
    tail: Tail | None
    """Of jobs with several rollout nodes that others may wait for."""
    sleep: bool = False
    """Whether the engines also give their memory on the device back outside their turn."""
    _standing: AsyncExitStack | None = None
    """The engines stand still, because it is not their turn."""
    _partly: bool = False
    """The rollout permit began on some of its nodes."""

    async def take(self, pool: SharedPool, step: int, tokens: int = 0, partly: bool = False) -> None:
        """Before a phase. Where pools are shared, engines stand still outside their turn, whatever they hold. `partly`:
        it may begin on some of its nodes."""
        if self.source is None:
            return
        await self.evaluation.settle()
        if self._standing is None:
            self._standing = AsyncExitStack()
            await self._standing.enter_async_context(self.fleet.standing(asleep=self.sleep))
        with self.journal.phase("permit", step):
            nodes = await self.source.take(pool, step, tokens, partly and self.tail is not None)
        if pool == "rollout":
            self._partly = nodes is not None
            if self.tail is not None:
                await self.tail.use(nodes)
            await self._standing.aclose()
            self._standing = None

    @asynccontextmanager
    async def making_room(self, step: int) -> AsyncIterator[None]:
        """Around the wait for a batch. Its last episodes move together, so that another job can use the other nodes,
        unless the engines are to evaluate afterwards."""
        if self.tail is None or self.evaluation.due(step):
            yield
            return
        async with asyncio.TaskGroup() as tasks:
            making_room = tasks.create_task(self.tail.run(self._partly), name="tail")
            yield
            making_room.cancel()
