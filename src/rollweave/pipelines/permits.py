"""Turns: leave to use a pool, for jobs that share pools with others.

A pipeline asks before each phase. Alone, the answer is always yes and costs nothing. In a cluster (`rollweave submit`)
the daemon says when: asking for the next turn hands the last one back, so that a job never computes without a permit,
and while it waits, all it needs stays resident in its process: the next phase starts warm.

Tail: the last answers of a batch move together, and another job gets the other rollout nodes.

    node 0   A ============= .. its long ones ..|B =====
    node 1   A =============|B =================
                      80 % done

A's training still waits for every answer, so A is not faster; B is, which begins on the nodes that are free and goes on
on all of them once A has left. Done only where pools are shared and somebody waits; planning never counts on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol

from rollweave.clock import Clock
from rollweave.fleet.proxy import MovingProxy
from rollweave.observability.events import Emitter
from rollweave.rollout.scheduler import RolloutScheduler

SharedPool = Literal["rollout", "train"]


class PermitSource(Protocol):
    shared: bool
    """Whether others wait for the pools: then nothing may go on in the background of another pool's phase."""

    async def take(self, pool: SharedPool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
        """Hand back the last turn and wait for one on this pool. So far `step` steps are trained; the phase that ends
        here made `tokens`. `partly`: it may begin on some of its nodes; returns on how many, if the others come later.
        """
        ...

    async def widened(self) -> None:
        """Wait until this turn has all its nodes."""
        ...

    async def awaited(self, keep: int) -> None:
        """Wait until somebody could begin if this turn kept its first `keep` nodes only."""
        ...

    async def narrow(self, keep: int) -> None:
        """Hand back all nodes of this turn but the first `keep`."""
        ...


MakePermits = Callable[[Clock], PermitSource]
"""Turns need the clock of the loop that asks."""


class Alone:
    """All pools are this job's own."""

    shared = False

    async def take(self, pool: SharedPool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
        return None

    async def widened(self) -> None:
        pass

    async def awaited(self, keep: int) -> None:
        await asyncio.Event().wait()  # there is nobody

    async def narrow(self, keep: int) -> None:
        pass


def alone(clock: Clock) -> PermitSource:
    return Alone()


THRESHOLD = 0.8
"""Share of a batch's episodes that have ended when the rest is a tail (RollMux)."""
TAIL_NODES = 0.25
"""Share of the nodes that a tail keeps, one at least."""


@dataclass(frozen=True, slots=True)
class Tail:
    proxy: MovingProxy
    engines: int
    """One for each rollout node."""
    turns: PermitSource
    scheduler: RolloutScheduler
    recorder: Emitter

    async def begin(self, nodes: int | None) -> None:
        """A turn, on so many nodes; None: on all."""
        await self.proxy.use(nodes or self.engines)

    async def run(self, partly: bool) -> None:
        """Beside the wait for a batch; given up when the batch is there. `partly`: the turn began on some nodes."""
        if partly:
            await self.turns.widened()
            await self._use(self.engines)
        keep = ceil(TAIL_NODES * self.engines)
        await self.scheduler.ended(THRESHOLD)
        await self.turns.awaited(keep)
        await self.scheduler.ended(THRESHOLD)  # still: groups may have failed, and others begun in their place
        await self._use(keep)
        await self.turns.narrow(keep)

    async def _use(self, nodes: int) -> None:
        if moved := await self.proxy.use(nodes):
            self.recorder.emit("requests.move", moved=moved, nodes=nodes)
