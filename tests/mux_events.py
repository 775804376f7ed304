"""Groups run phase by phase, written without a look at coexec.py: what the closed forms are compared with."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from rollweave.mux.model.group import CoGroup, Phases

TRAIN = -1


@dataclass
class Shop:
    """Jobs alternate between their rollout nodes and the train nodes; who may start is the discipline's business."""

    rolls: Sequence[float]
    trains: Sequence[float]
    pins: Sequence[tuple[int, ...]]
    duration: Callable[[int, bool], float] | None = None
    busy: dict[int, int] = field(default_factory=dict)
    ended: list[list[float]] = field(default_factory=list)

    def needs(self, job: int, training: bool) -> tuple[int, ...]:
        return (TRAIN,) if training else self.pins[job]

    def lasts(self, job: int, training: bool) -> float:
        if self.duration is not None:
            return self.duration(job, training)
        return self.trains[job] if training else self.rolls[job]

    def run(
        self, starts: Sequence[float], iterations: int, may_start: Callable[[int, bool], bool]
    ) -> list[list[float]]:
        """Times at which each job's iterations end, until every job has done as many."""
        self.ended = [[] for _ in self.rolls]
        events = [(start, number, "wake", number, False) for number, start in enumerate(starts)]
        heapq.heapify(events)
        waiting: list[tuple[int, bool]] = []
        count = len(events)
        while min(len(ends) for ends in self.ended) < iterations:
            now = events[0][0]
            while events and events[0][0] == now:
                _, _, what, job, training = heapq.heappop(events)
                if what == "end":
                    for place in self.needs(job, training):
                        del self.busy[place]
                    if training:
                        self.ended[job].append(now)
                waiting.append((job, what == "end" and not training))
            for job, training in list(waiting):
                free = all(place not in self.busy for place in self.needs(job, training))
                if free and may_start(job, training):
                    waiting.remove((job, training))
                    self.busy.update(dict.fromkeys(self.needs(job, training), job))
                    count += 1
                    heapq.heappush(events, (now + self.lasts(job, training), count, "end", job, training))
                    self.started(job, training)
            self.waiting = waiting
        return self.ended

    def started(self, job: int, training: bool) -> None:
        """A hook for disciplines that keep turns."""


@dataclass
class RoundRobin(Shop):
    """Every place serves its jobs in the same cyclic order."""

    order: Sequence[int] = ()
    turn: dict[int, int] = field(default_factory=dict)

    def line(self, place: int) -> list[int]:
        return [job for job in self.order if place == TRAIN or place in self.pins[job]]

    def mine(self, job: int, training: bool) -> bool:
        places = self.needs(job, training)
        return all(self.line(place)[self.turn.get(place, 0) % len(self.line(place))] == job for place in places)

    def started(self, job: int, training: bool) -> None:
        for place in self.needs(job, training):
            self.turn[place] = self.turn.get(place, 0) + 1

    def period(self, rounds: int) -> float:
        first = self.run([0.0] * len(self.rolls), rounds, self._may)[self.order[0]]
        return (first[rounds - 1] - first[rounds // 2 - 1]) / (rounds - rounds // 2)

    def _may(self, job: int, training: bool) -> bool:
        return self.mine(job, training)


def fifo(shop: Shop, starts: Sequence[float], iterations: int) -> list[list[float]]:
    """First come, first served: `waiting` is kept in the order of queueing, so any job that is free may go."""
    return shop.run(starts, iterations, lambda job, training: True)


seconds = st.integers(1, 60).map(float)


@st.composite
def groups(draw: st.DrawFn, most: int = 5, gangs: bool = False, switches: bool = True) -> CoGroup:
    """A group of 2 to `most` jobs on 1 to 3 rollout nodes."""
    count = draw(st.integers(2, most))
    nodes = draw(st.integers(1, 3))
    group = CoGroup(1, (0,))
    for number in range(count):
        pins = draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=nodes if gangs else 1))
        switch = float(draw(st.integers(0, 3))) if switches else 0.0
        phases = Phases(draw(seconds), draw(seconds), switch, switch / 2, 0.0, 0.0, len(pins))
        group.add(f"{number}", phases, tuple(sorted(pins)))
    return group


def shop_of(group: CoGroup) -> dict[str, list[float] | list[tuple[int, ...]]]:
    members = list(group.phases.values())
    return {
        "rolls": [own.shared_roll for own in members],
        "trains": [own.shared_train for own in members],
        "pins": list(group.pins.values()),
    }
