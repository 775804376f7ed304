"""The deterministic FIFO run of a group: what each member's mean iteration settles at if phases last as planned."""

from __future__ import annotations

import heapq
from collections import deque

from rollweave.mux.group import Group

ITERATIONS = 30
"""Of the slowest member; the first half is the transient and is dropped."""


def fifo_means(group: Group, iterations: int = ITERATIONS) -> dict[str, float]:
    """Mean iteration by member. Ties are served in arrival order, so the answer is a function of the group."""
    horizon = iterations * (group.max_solo + group.sum_train + group.max_load)
    stamps = fifo_run(group, horizon)
    return {job: _settled(times, horizon) for job, times in stamps.items()}


def _settled(times: list[float], horizon: float) -> float:
    late = [time for time in times if time >= horizon / 2]
    return (late[-1] - late[0]) / (len(late) - 1)


def fifo_run(group: Group, horizon: float) -> dict[str, list[float]]:
    """Times at which each member finishes its iterations: one queue per rollout node, one for all train nodes."""
    members = list(group.pins)
    node = {job: group.pins[job][0] for job in members}
    queues: dict[object, deque[str]] = {where: deque() for where in ("train", *node.values())}
    busy: set[object] = set()
    done: dict[str, list[float]] = {job: [] for job in members}
    events: list[tuple[float, int, str, object]] = []
    sequence = 0

    def start(where: object, now: float) -> None:
        nonlocal sequence
        if where in busy or not queues[where]:
            return
        job = queues[where].popleft()
        own = group.phases[job]
        busy.add(where)
        sequence += 1
        lasts = own.shared_train if where == "train" else own.shared_roll
        heapq.heappush(events, (now + lasts, sequence, job, where))

    for job in members:
        queues[node[job]].append(job)
    for where in dict.fromkeys(node.values()):
        start(where, 0.0)
    while events and events[0][0] <= horizon:
        now, _, job, where = heapq.heappop(events)
        busy.discard(where)
        if where == "train":
            done[job].append(now)
        following: object = node[job] if where == "train" else "train"
        queues[following].append(job)
        start(where, now)
        start(following, now)
    return done
