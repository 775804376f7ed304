"""Weights from the train pool to the rollout pool: one copy over the slow link, then a broadcast inside.

Flat: every rollout replica fetches the whole model across the clusters. Topology-aware: the model is cut into one
shard per train GPU, each goes to one rollout GPU (scatter), and the rollout GPUs give their shards to all others over
the fast network (broadcast). `plan_sync` says which shard goes where; `sync_seconds` what it takes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from rollweave.mux.model.node import GPUS_PER_NODE
from rollweave.mux.model.profile import ProfileError

GIGABIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes per second; defaults are RollMux's testbed (section 6)."""

    across: float = 20 * GIGABIT
    """Between the pools, per GPU."""
    between_nodes: float = 400 * GIGABIT
    """Inside the rollout pool, per node."""
    in_node: float = 400e9
    """NVLink, per GPU."""
    efficiency: float = 0.85
    """Of the line rate that a long transfer gets."""


TESTBED = Links()


class Transfer(NamedTuple):
    """Bytes `start` to `stop` of the flattened weights, from one GPU to another."""

    source: int
    target: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class SyncPlan:
    scatter: tuple[Transfer, ...]
    """Train GPU -> rollout GPU, all at once, each byte of the model exactly once."""
    broadcast: tuple[Transfer, ...]
    """Rollout GPU -> rollout GPU: the first hop of each shard's broadcast tree, listed per receiver."""

    @property
    def crossing(self) -> int:
        """Bytes over the slow link."""
        return sum(transfer.bytes for transfer in self.scatter)


def shards(size: int, count: int) -> list[tuple[int, int]]:
    """`size` bytes cut into `count` consecutive pieces that differ by at most one byte."""
    cuts = [size * number // count for number in range(count + 1)]
    return list(pairwise(cuts))


def plan_sync(size: int, train_gpus: int, rollout_gpus: int) -> SyncPlan:
    """Which shard goes from which trainer to which rollout GPU, then to everybody else."""
    if min(size, train_gpus, rollout_gpus) < 1:
        raise ProfileError(f"size={size}, train_gpus={train_gpus} and rollout_gpus={rollout_gpus} must be at least 1")
    lanes = min(train_gpus, rollout_gpus)
    scatter = tuple(Transfer(lane, lane, *piece) for lane, piece in enumerate(shards(size, lanes)))
    broadcast = tuple(
        Transfer(piece.target, gpu, piece.start, piece.stop)
        for piece in scatter
        for gpu in range(rollout_gpus)
        if gpu != piece.target
    )
    return SyncPlan(scatter, broadcast)


def sync_seconds(plan: SyncPlan, links: Links = TESTBED) -> float:
    """Scatter lanes run side by side; then every GPU receives what it lacks, from its own node or another one's."""
    lane = max(transfer.bytes for transfer in plan.scatter)
    into_gpu: Counter[int] = Counter()
    into_node: Counter[int] = Counter()
    for transfer in plan.broadcast:
        if transfer.source // GPUS_PER_NODE == transfer.target // GPUS_PER_NODE:
            into_gpu[transfer.target] += transfer.bytes
        else:
            into_node[transfer.target // GPUS_PER_NODE] += transfer.bytes
    seconds = lane / links.across
    seconds += max(into_gpu.values(), default=0) / links.in_node
    seconds += max(into_node.values(), default=0) / links.between_nodes
    return seconds / links.efficiency


def flat_seconds(size: int, train_gpus: int, replicas: int, links: Links = TESTBED) -> float:
    """The usual way: every replica gathers the whole model across the slow link, over as many lanes as there are
    trainers; a replica's own link takes the whole model."""
    per_replica = size / (links.across * links.efficiency)
    shared = size * replicas / (train_gpus * links.across * links.efficiency)
    return max(per_replica, shared)
