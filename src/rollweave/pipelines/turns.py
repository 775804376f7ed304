"""Turns: leave to use a pool, for jobs that share pools with others.

A pipeline asks before each phase. Alone, the answer is always yes and costs nothing. In a cluster (`rollweave submit`)
the daemon says when: asking for the next turn hands the last one back, so that a job never computes without a permit,
and while it waits, all it needs stays resident in its process: the next phase starts warm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol

from rollweave.clock import Clock

Pool = Literal["rollout", "train"]


class Turns(Protocol):
    shared: bool
    """Whether others wait for the pools: then nothing may go on in the background of another pool's phase."""

    async def take(self, pool: Pool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
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


MakeTurns = Callable[[Clock], Turns]
"""Turns need the clock of the loop that asks."""


class Alone:
    """All pools are this job's own."""

    shared = False

    async def take(self, pool: Pool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
        return None

    async def widened(self) -> None:
        pass

    async def awaited(self, keep: int) -> None:
        await asyncio.Event().wait()  # there is nobody

    async def narrow(self, keep: int) -> None:
        pass


def alone(clock: Clock) -> Turns:
    return Alone()
