"""Dollars until the last finish: what a group will cost if nothing else happens.

Train nodes are paid until its last job is done, every rollout node until the last job pinned to it is done. A
placement scored by the change of this bill sees what dollars per hour cannot: a two-hour job that keeps a pair of
nodes alive for nobody else, or a host slowed down so that it pays its own nodes longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollweave.mux.model.group import Group
from rollweave.mux.model.state import ClusterState

HOUR = 3600.0


def finishes(state: ClusterState, group: Group) -> dict[str, float]:
    """When the members end at their present pace."""
    return {name: state.jobs[name].finish_at() for name in group.jobs}


def bill(state: ClusterState, group: Group, ends: Mapping[str, float], now: float) -> float:
    """Dollars from now on, given when each member ends."""
    if not ends:
        return 0.0
    node_until: dict[int, float] = {}
    for name, end in ends.items():
        for node in group.pins[name]:
            node_until[node] = max(node_until.get(node, now), end)
    train = state.train.price * group.width * (max(ends.values()) - now)
    rollout = state.rollout.price * sum(until - now for until in node_until.values())
    return (train + rollout) / HOUR
