"""How long an iteration takes in company.

Round robin: every member does one rollout and one train phase per meta-iteration, in the same cyclic order on all
nodes. If no rollout is a gang (several nodes at once) the period of *any* order is max(T_cycle, T_load): the schedule
is a timed event graph and no circuit of it weighs more per token. Gangs chain waits across nodes, so there the
max-plus recursion is run and its growth per round measured.

First come, first served (FIFO): every member runs at its own rate. A member can find every other one ahead of it at
most once per queue, and another member's phases fill at most its own share of the time, so over n iterations
    X <= n (solo_k + sum of w_j over `often`) + sum over `seldom` of (u_j X + w_j (1 - u_j))
with w_j the seconds j may hold us up per iteration and u_j = w_j / solo_j. Solved for X this is `FifoBound`.

The deterministic FIFO run of a group: what each member's mean iteration settles at if phases last as planned.

The best cyclic order of a group with gangs. Without gangs every order has the same period.
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
    """Seconds of one meta-iteration under round robin; the same for every member."""
    if not group.gang or len(group.pins) == 1:
        return max(group.t_cycle, group.t_load)
    return max_plus_period(group, group.order or tuple(group.pins))


def max_plus_period(group: CoGroup, order: Sequence[str], rounds: int = ROUNDS) -> float:
    """Growth per round of the recursion 'a phase starts when its nodes and its predecessor are done'."""
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


class FifoBound(NamedTuple):
    """`iterations` more of them take at most `per_iter * iterations + extra` seconds, from any moment on."""

    per_iter: float
    extra: float

    def within(self, iterations: float) -> float:
        return self.per_iter * iterations + self.extra


def fifo_worst(group: CoGroup, job: str) -> float:
    """No single iteration of `job` takes longer, whatever the others do within their planned times."""
    own, home = group.phases[job], group.pins[job]
    total = own.shared_roll + group.sum_train
    return total + sum(
        other.shared_roll for name, other in group.phases.items() if name != job and group.pins[name] == home
    )


def fifo_bound(group: CoGroup, job: str) -> FifoBound:
    """The mean iteration of `job` can at most be this; members slower than it cannot be ahead every time."""
    own, home = group.phases[job], group.pins[job]
    others = []
    for name, other in group.phases.items():
        if name != job:
            same = other.shared_roll if group.pins[name] == home else 0.0
            others.append((other.shared_solo, other.shared_train, same))
    others.sort(reverse=True)
    often = own.shared_solo + sum(train + same for _, train, same in others)
    busy = extra = 0.0
    per_iter = often
    for solo, train, same in others:
        if solo <= per_iter:
            break
        often -= train + same
        busy += (train + same) / solo
        extra += train * (1 - train / solo) + same * (1 - same / solo)
        if busy >= 1:  # a share of the whole machine: this way of counting bounds nothing any more
            break
        per_iter = min(per_iter, often / (1 - busy))
    return _solved(others, own.shared_solo, per_iter)


def _solved(others: list[tuple[float, float, float]], solo_s: float, per_iter: float) -> FifoBound:
    seldom = [other for other in others if other[0] > per_iter]
    busy = sum((train + same) / solo for solo, train, same in seldom)
    extra = sum(train * (1 - train / solo) + same * (1 - same / solo) for solo, train, same in seldom)
    often = solo_s + sum(train + same for solo, train, same in others if solo <= per_iter)
    return FifoBound(often / (1 - busy), extra / (1 - busy))


FIFO_ROUNDS = 24
"""Worst-case iterations of the slowest member; the first third is the transient and is dropped."""

Line = tuple[tuple[float, float, int], ...]
"""(rollout seconds, train seconds, index of the rollout node) of every member, in arrival order."""


def fifo_means(group: CoGroup) -> dict[str, float]:
    """Mean iteration by member. Ties are served in arrival order, so the answer is a function of the group."""
    return dict(zip(group.pins, _means(line_of(group)), strict=True))


def line_of(group: CoGroup) -> Line:
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
    horizon = FIFO_ROUNDS * worst
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


EXHAUSTIVE = 5
"""Up to this many members all (n-1)! cyclic orders are tried; above it neighbours are swapped while that helps."""


def best_order(group: CoGroup) -> tuple[str, ...]:
    """The order with the shortest period; arrival order if nothing beats it."""
    arrival = tuple(group.pins)
    if len(arrival) <= EXHAUSTIVE:
        first, *rest = arrival
        return min(((first, *tail) for tail in permutations(rest)), key=lambda order: _period(group, order))
    return _two_opt(group, _gangs_together(group))


def _period(group: CoGroup, order: tuple[str, ...]) -> float:
    return round(max_plus_period(group, order), 9)


def _gangs_together(group: CoGroup) -> tuple[str, ...]:
    return tuple(sorted(group.pins, key=lambda job: (-len(group.pins[job]), group.pins[job])))


def _two_opt(group: CoGroup, order: tuple[str, ...]) -> tuple[str, ...]:
    best = min((order, tuple(group.pins)), key=lambda candidate: _period(group, candidate))
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
