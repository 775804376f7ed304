"""Tail: the last answers of a batch move together, and another job gets the other rollout nodes.

    node 0   A ============= .. its long ones ..|B =====
    node 1   A =============|B =================
                      80 % done

A's training still waits for every answer, so A is not faster; B is, which begins on the nodes that are free and goes on
on all of them once A has left. Done only where pools are shared and somebody waits; planning never counts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rollweave.observability.events import Emitter
from rollweave.pipelines.turns import Turns
from rollweave.rollout.moving import MovingProxy
from rollweave.rollout.scheduler import RolloutScheduler

THRESHOLD = 0.8
"""Share of a batch's episodes that have ended when the rest is a tail (RollMux)."""
TAIL_NODES = 0.25
"""Share of the nodes that a tail keeps, one at least."""


@dataclass(frozen=True, slots=True)
class Tail:
    proxy: MovingProxy
    engines: int
    """One for each rollout node."""
    turns: Turns
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
