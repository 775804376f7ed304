"""Computes how long an iteration takes for each job of a co-group.

Round robin: every job does one rollout and one train phase per lap, in the same cyclic order on all nodes. If no
rollout is a gang (several nodes at once), the period of *any* order is max(T_cycle, T_load): the schedule is a timed
event graph, and no circuit of it has more weight per token. Gangs make waits depend on other nodes, so there the
max-plus recursion is run, its growth per lap is measured, and a good order is searched.

First come, first served (FIFO): every job runs at its own rate. A job can find each other job ahead of it at most once
per queue, and another job's phases fill at most its own share of the time. So over n iterations
    X <= n (solo_k + sum of w_j over `often`) + sum over `seldom` of (u_j X + w_j (1 - u_j))
where w_j are the seconds by which j may delay us per iteration, and u_j = w_j / solo_j. Solved for X this is
`FifoBound`. `fifo_means` simulates the queues instead, with phases that last exactly as planned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import permutations
from typing import NamedTuple

from rollweave.mux.model.group import CoGroup

ROUNDS = 20


def meta_period(group: CoGroup) -> float:
    """Seconds of one lap under round robin, which is the iteration of every job."""
    if not group.gang or len(group.pins) == 1:
        return max(group.t_cycle, group.t_load)
    return max_plus_period(group, group.order or tuple(group.pins))


def max_plus_period(group: CoGroup, order: Sequence[str], rounds: int = ROUNDS) -> float:
    """The growth per lap of the recursion "a phase starts when its nodes and the phase before it are done"."""
    node_free: dict[int, float] = {}
    ready: dict[str, float] = {}
    train_free = half = 0.0
    for number in range(rounds):
        for job in order:
            own, nodes = group.phases[job], group.pins[job]
            end = max(ready.get(job, 0.0), *(node_free.get(node, 0.0) for node in nodes)) + own.shared_roll
            node_free.update(dict.fromkeys(nodes, end))
            train_free = max(train_free, end) + own.shared_train
            ready[job] = train_free
        if number == rounds // 2 - 1:
            half = train_free
    return (train_free - half) / (rounds - rounds // 2)


# --------------------------------------------------------------------------------------- FIFO: the proved bound


class FifoBound(NamedTuple):
    """The next n iterations of a job take at most `per_iter * n + extra` seconds, from any moment on."""

    per_iter: float
    extra: float

    def within(self, iterations: float) -> float:
        return self.per_iter * iterations + self.extra


def fifo_worst(group: CoGroup, job: str) -> float:
    """The longest possible single iteration of `job`, if all phases last at most as long as planned."""
    own, home = group.phases[job], group.pins[job]
    total = own.shared_roll + group.sum_train
    return total + sum(
        other.shared_roll for name, other in group.phases.items() if name != job and group.pins[name] == home
    )


def fifo_bound(group: CoGroup, job: str) -> FifoBound:
    """The bound on the mean iteration of `job`. It uses that a slower job cannot be ahead in every iteration."""
    own, home = group.phases[job], group.pins[job]
    others = []
    for name, other in group.phases.items():
        if name != job:
            same = other.shared_roll if group.pins[name] == home else 0.0
            others.append((other.shared_solo, other.shared_train, same))
    others.sort(reverse=True)
    often = own.shared_solo + sum(train + same for _, train, same in others)
    busy = 0.0
    per_iter = often
    for solo, train, same in others:
        if solo <= per_iter:
            break
        often -= train + same
        busy += (train + same) / solo
        if busy >= 1:  # the slower jobs fill all of the time, so this way of counting gives no bound
            break
        per_iter = min(per_iter, often / (1 - busy))
    return _solved(others, own.shared_solo, per_iter)


def _solved(others: list[tuple[float, float, float]], solo_s: float, per_iter: float) -> FifoBound:
    seldom = [other for other in others if other[0] > per_iter]
    busy = sum((train + same) / solo for solo, train, same in seldom)
    extra = sum(train * (1 - train / solo) + same * (1 - same / solo) for solo, train, same in seldom)
    often = solo_s + sum(train + same for solo, train, same in others if solo <= per_iter)
    return FifoBound(often / (1 - busy), extra / (1 - busy))


# ------------------------------------------------------------------------------------------ FIFO: the simulation

FIFO_ROUNDS = 24
"""The length of the simulation, in worst-case iterations of the slowest job. The first third is left out."""

Line = tuple[tuple[float, float, int], ...]
"""(rollout seconds, train seconds, index of the rollout node) of every job, in arrival order."""


def fifo_means(group: CoGroup) -> dict[str, float]:
    """The mean iteration of each job. Ties are served in arrival order, so the result depends only on the group."""
    index: dict[int, int] = {}
    line = []
    for job, nodes in group.pins.items():
        own = group.phases[job]
        line.append((own.shared_roll, own.shared_train, index.setdefault(nodes[0], len(index))))
    return dict(zip(group.pins, _means(tuple(line)), strict=True))


@lru_cache(maxsize=1 << 16)
def _means(line: Line) -> tuple[float, ...]:
    """The mean iterations; cached, because placement, the check of its plan and its execution use the same groups."""
    worst = max(roll + train for roll, train, _ in line) + sum(train for _, train, _ in line)
    horizon = FIFO_ROUNDS * worst
    return tuple(_settled(times, horizon / 3) for times in fifo_run(line, horizon))


def _settled(times: list[float], after: float) -> float:
    first = next(index for index, time in enumerate(times) if time >= after)
    return (times[-1] - times[first]) / (len(times) - 1 - first)


def fifo_run(line: Line, horizon: float) -> list[list[float]]:
    """The times at which each job ends its iterations, with a queue per rollout node and one for all train nodes."""
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


# ------------------------------------------------------------------------------------- round robin: the best order

EXHAUSTIVE = 5
"""For up to so many jobs all (n-1)! cyclic orders are tried; for more, two jobs are swapped while that helps."""


def best_order(group: CoGroup) -> tuple[str, ...]:
    """The cyclic order with the shortest period; arrival order if no other is better. It matters only with gangs."""
    arrival = tuple(group.pins)
    if len(arrival) <= EXHAUSTIVE:
        first, *rest = arrival
        return min(((first, *tail) for tail in permutations(rest)), key=lambda order: _period(group, order))
    gangs_together = tuple(sorted(arrival, key=lambda job: (-len(group.pins[job]), group.pins[job])))
    return _two_opt(group, min((gangs_together, arrival), key=lambda order: _period(group, order)))


def _period(group: CoGroup, order: tuple[str, ...]) -> float:
    return round(max_plus_period(group, order), 9)


def _two_opt(group: CoGroup, best: tuple[str, ...]) -> tuple[str, ...]:
    improved = True
    while improved:
        improved = False
        for left in range(1, len(best) - 1):
            for right in range(left + 1, len(best)):
                swapped = list(best)
                swapped[left], swapped[right] = swapped[right], swapped[left]
                if _period(group, tuple(swapped)) < _period(group, best):
                    best, improved = tuple(swapped), True
    return best
