"""The best cyclic order of a group with gangs. Without gangs every order has the same period (coexec.py)."""

from __future__ import annotations

from itertools import permutations

from rollweave.mux.model.coexec import max_plus_period
from rollweave.mux.model.group import Group

EXHAUSTIVE = 5
"""Up to this many members all (n-1)! cyclic orders are tried; above it neighbours are swapped while that helps."""


def best_order(group: Group) -> tuple[str, ...]:
    """The order with the shortest period; arrival order if nothing beats it."""
    arrival = tuple(group.pins)
    if len(arrival) <= EXHAUSTIVE:
        first, *rest = arrival
        return min(((first, *tail) for tail in permutations(rest)), key=lambda order: _period(group, order))
    return _two_opt(group, _gangs_together(group))


def _period(group: Group, order: tuple[str, ...]) -> float:
    return round(max_plus_period(group, order), 9)


def _gangs_together(group: Group) -> tuple[str, ...]:
    return tuple(sorted(group.pins, key=lambda job: (-len(group.pins[job]), group.pins[job])))


def _two_opt(group: Group, order: tuple[str, ...]) -> tuple[str, ...]:
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
