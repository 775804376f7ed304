"""Who holds which slot of the KV cache.

A trajectory's slot stays its own between turns, so that the next turn computes only what is new. When a slot is
needed and none is free, the trajectory that has been idle longest loses its keys and values; they are computed
again from its tokens when it returns. Trajectories with a running request are never evicted.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class Context:
    """The tokens of one trajectory and how far the cache has followed them."""

    trajectory: str
    tokens: list[int] = field(default_factory=list)
    slot: int | None = None
    computed: int = 0
    """Leading tokens whose keys and values are in the slot."""
    seen: int = 0
    """Leading tokens computed at any time; doing those again is recomputation."""
    kv_version: int = 0
    """The policy version that computed the first of them: the oldest, since a cache only grows at its end."""
    wanted: bool = False
    """Has a request, waiting or running."""
    released: bool = False

    def rewrite(self, tokens: list[int]) -> None:
        """Continue from these tokens, keeping what they share with the old ones."""
        shared = _common_prefix(self.tokens, tokens)
        self.tokens = list(tokens)
        self.seen = min(self.seen, shared)
        # The last token is always computed: its logits are what a request asks for.
        self.computed = min(self.computed, shared, len(tokens) - 1)

    def advance(self, count: int, version: int) -> int:
        """Note that `version` computed `count` more tokens; returns how many of them had been there before."""
        if self.computed == 0:
            self.kv_version = version
        again = max(0, min(self.seen - self.computed, count))
        self.computed += count
        self.seen = max(self.seen, self.computed)
        return again


class SlotTable:
    """Contexts by trajectory; free slots lowest first, so that the slots in use lie close together."""

    def __init__(self, slots: int) -> None:
        self.evictions = 0
        self._contexts: dict[str, Context] = {}
        self._free = list(range(slots))
        self._idle: dict[str, Context] = {}  # with a slot but no running request; longest idle first

    def context(self, trajectory: str) -> Context:
        return self._contexts.setdefault(trajectory, Context(trajectory))

    def occupy(self, context: Context) -> bool:
        """Give the context a slot for a running request; False if all slots are running."""
        if context.slot is not None:
            del self._idle[context.trajectory]
            return True
        if not self._free and not self._evict():
            return False
        context.slot = heapq.heappop(self._free)
        return True

    def rest(self, context: Context) -> None:
        """The context's request ended; its cache stays unless it was released or never got a slot."""
        context.wanted = False
        if context.slot is not None:
            self._idle[context.trajectory] = context
        if context.released:
            self.release(context.trajectory)

    def release(self, trajectory: str) -> None:
        context = self._contexts.get(trajectory)
        if context is None:
            return
        context.released = True
        if not context.wanted:
            self._vacate(context)
            del self._contexts[trajectory]

    def invalidate(self) -> None:
        """The weights changed: nothing in the cache is true any more."""
        for context in list(self._idle.values()):
            self._vacate(context)
        for context in self._contexts.values():
            context.computed = 0

    def _evict(self) -> bool:
        """Free the slot idle longest; one whose trajectory is about to run is only taken if there is no other."""
        if not self._idle:
            return False
        victim = next((c for c in self._idle.values() if not c.wanted), next(iter(self._idle.values())))
        self._vacate(victim)
        self.evictions += 1
        return True

    def _vacate(self, context: Context) -> None:
        if context.slot is not None:
            heapq.heappush(self._free, context.slot)
            self._idle.pop(context.trajectory, None)
            context.slot = None
            context.computed = 0


def _common_prefix(a: list[int], b: list[int]) -> int:
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])
