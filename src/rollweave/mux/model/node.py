"""Nodes and what they cost: two pools, each with a price, host memory and perhaps a limit.

A node is a number in its pool. The lowest free number is always used next, so that the same arrivals give the
same nodes on every run.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

GPUS_PER_NODE = 8


@dataclass(slots=True)
class Pool:
    price: float
    """Dollars per node and hour."""
    host_gb: float = 2048.0
    limit: float = math.inf
    used: float = 0
    """Nodes given out. Whole ones, but for Gavel+, which pays for fractions."""
    next: int = 0
    freed: list[int] = field(default_factory=list)

    def has(self, count: int) -> bool:
        return self.used + count <= self.limit

    def peek(self, count: int) -> tuple[int, ...]:
        """The numbers the next `take` would give out."""
        free = heapq.nsmallest(count, self.freed)
        return (*free, *range(self.next, self.next + count - len(free)))

    def take(self, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            if node >= self.next:
                self.freed.extend(range(self.next, node))
                self.next = node + 1
            else:
                self.freed.remove(node)
        heapq.heapify(self.freed)
        self.used += len(nodes)

    def give_back(self, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            heapq.heappush(self.freed, node)
        self.used -= len(nodes)

    def copy(self) -> Pool:
        return Pool(self.price, self.host_gb, self.limit, self.used, self.next, list(self.freed))


def rollout_pool(host_gb: float = 2048.0, limit: float = math.inf) -> Pool:
    """8 x H20 at $1.85 per GPU and hour (RollMux section 6)."""
    return Pool(GPUS_PER_NODE * 1.85, host_gb, limit)


def train_pool(host_gb: float = 2048.0, limit: float = math.inf) -> Pool:
    """8 x H800 at $5.28 per GPU and hour (RollMux section 6)."""
    return Pool(GPUS_PER_NODE * 5.28, host_gb, limit)
