"""The deterministic FIFO run of a group: what each member's mean iteration settles at if phases last as planned."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from heapq import heappop, heappush

from rollweave.mux.model.group import Group

ROUNDS = 24
"""Worst-case iterations of the slowest member; the first third is the transient and is dropped."""

Line = tuple[tuple[float, float, int], ...]
"""(rollout seconds, train seconds, index of the rollout node) of every member, in arrival order."""


def fifo_means(group: Group) -> dict[str, float]:
    """Mean iteration by member. Ties are served in arrival order, so the answer is a function of the group."""
    return dict(zip(group.pins, _means(line_of(group)), strict=True))


def line_of(group: Group) -> Line:
    index: dict[int, int] = {}
    line = []
    for job, nodes in group.pins.items():
        own = group.phases[job]
        line.append((own.roll + own.switch_roll, own.train + own.switch_train, index.setdefault(nodes[0], len(index))))
    return tuple(line)


@lru_cache(maxsize=1 << 16)
def _means(line: Line) -> tuple[float, ...]:
    """Remembered, because placement, the check of its plan and its execution ask about the same groups."""
    worst = max(roll + train for roll, train, _ in line) + sum(train for _, train, _ in line)
    horizon = ROUNDS * worst
    return tuple(_settled(times, horizon / 3) for times in fifo_run(line, horizon))


def _settled(times: list[float], after: float) -> float:
    first = next(index for index, time in enumerate(times) if time >= after)
    return (times[-1] - times[first]) / (len(times) - 1 - first)


def fifo_run(line: Line, horizon: float) -> list[list[float]]:
    """Times at which each member finishes its iterations: one queue per rollout node, one for all train nodes."""
    nodes = 1 + max(node for _, _, node in line)
    waiting: list[deque[int]] = [deque() for _ in range(nodes + 1)]
    train = nodes  # the last queue
    idle = [True] * (nodes + 1)
    done: list[list[float]] = [[] for _ in line]
    events: list[tuple[float, int, int, int]] = []
    sequence = 0
    for job, (_, _, node) in enumerate(line):
        waiting[node].append(job)
    now, changed = 0.0, [*range(nodes)]
    while now <= horizon:
        for where in changed:
            if idle[where] and waiting[where]:
                job = waiting[where].popleft()
                idle[where] = False
                sequence += 1
                heappush(events, (now + line[job][where == train], sequence, job, where))
        now, _, job, where = heappop(events)
        idle[where] = True
        if where == train:
            done[job].append(now)
        following = line[job][2] if where == train else train
        waiting[following].append(job)
        changed = [where, following]
    return done
