"""How long an iteration takes in company.

Round robin: every member does one rollout and one train phase per meta-iteration, in the same cyclic order on all
nodes. If no rollout is a gang (several nodes at once) the period of *any* order is max(T_cycle, T_load): the schedule
is a timed event graph and no circuit of it weighs more per token. Gangs chain waits across nodes, so there the
max-plus recursion is run and its growth per round measured.

First come, first served (FIFO): every member runs at its own rate. A member can find every other one ahead of it at
most once per queue, and another member's phases fill at most its own share of the time, so over n iterations
    X <= n (solo_k + sum of w_j over `often`) + sum over `seldom` of (u_j X + w_j (1 - u_j))
with w_j the seconds j may hold us up per iteration and u_j = w_j / solo_j. Solved for X this is `FifoBound`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollweave.mux.model.group import Group

ROUNDS = 20


def meta_period(group: Group) -> float:
    """Seconds of one meta-iteration under round robin; the same for every member."""
    if not group.gang or len(group.pins) == 1:
        return max(group.t_cycle, group.t_load)
    return max_plus_period(group, group.order or tuple(group.pins))


def max_plus_period(group: Group, order: Sequence[str], rounds: int = ROUNDS) -> float:
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


def fifo_worst(group: Group, job: str) -> float:
    """No single iteration of `job` takes longer, whatever the others do within their planned times."""
    own, home = group.phases[job], group.pins[job]
    total = own.shared_roll + group.sum_train
    return total + sum(
        other.shared_roll for name, other in group.phases.items() if name != job and group.pins[name] == home
    )


def fifo_bound(group: Group, job: str) -> FifoBound:
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
