"""Translates placements into seats: where a job of a co-group asks for its permits, and when it is next.

The daemon and the phase-by-phase replay both seat their jobs here, so that a plan means the same in both.
"""

from __future__ import annotations

from functools import lru_cache

from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.state import ClusterState
from rollweave.mux.permits import Node, Seat
from rollweave.pipelines.permits import SharedPool


@lru_cache(maxsize=1 << 12)
def node_names(pool: SharedPool, numbers: tuple[int, ...]) -> tuple[Node, ...]:
    """The names of nodes of a pool, remembered because a replay asks for the same ones after every decision."""
    return tuple(f"{pool}-{number}" for number in numbers)


def seat_in(group: CoGroup, job: str) -> Seat:
    """The seat of a member of a group; its rank is its place in the group's order."""
    order = group.order or group.jobs
    rollout, train = node_names("rollout", group.pins[job]), node_names("train", group.train_nodes)
    return Seat({"rollout": rollout, "train": train}, order.index(job), group.mode)


def seats_of(state: ClusterState) -> dict[str, Seat]:
    """The seats of all placed jobs."""
    return {job: seat_in(state.groups[group], job) for job, group in state.home.items()}
