"""Replays a trace of arrivals under a policy, with failures and moves: what it cost, and which promises it kept.

The state and the decisions are the scheduler's own (`ClusterState`, `Scheduler`); the replay tells it what happens and
keeps the books. Progress between two events is linear (one iteration per `pace` seconds), every event computes the pace
of the groups that it touches anew, and a job leaves when its last iteration ends. `PhaseReplay` simulates every phase
instead.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

from rollweave.errors import ConfigError
from rollweave.mux.decisions.plan import Plan
from rollweave.mux.decisions.scheduler import Decider
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.state import ClusterState
from rollweave.mux.simulation.books import SLACK, ReplayBooks


@runtime_checkable
class Periodic(Protocol):
    """A policy that also decides at regular times, without an event."""

    @property
    def every_s(self) -> float: ...
    def tick(self, state: ClusterState, now: float) -> Plan: ...


class Failure(NamedTuple):
    """The job dies at one moment and is submitted again at another, from its last finished iteration."""

    job: str
    at_s: float
    resubmitted_s: float


class Decision(NamedTuple):
    at_s: float
    event: str
    job: str
    steps: tuple[str, ...]
    latency_ms: float


class Ended(NamedTuple):
    """How one job's life went."""

    job: str
    submitted_s: float
    cold_start_s: float
    waited_s: float
    finished_s: float
    deadline_s: float

    @property
    def in_slo(self) -> bool:
        return self.finished_s <= self.deadline_s + SLACK * max(1.0, abs(self.deadline_s))


@dataclass(slots=True)
class ReplayResult:
    ledger: ReplayBooks = field(default_factory=ReplayBooks)
    ended: list[Ended] = field(default_factory=list)
    admissions: Counter[str] = field(default_factory=Counter)
    decisions: list[Decision] = field(default_factory=list)
    moves: int = 0
    paused_s: float = 0.0

    @property
    def hours(self) -> float:
        first = min((job.submitted_s for job in self.ended), default=0.0)
        return (self.ledger.now - first) / 3600

    @property
    def slo_attainment(self) -> float:
        return sum(job.in_slo for job in self.ended) / len(self.ended) if self.ended else 1.0


Action = Callable[[float], None]


@dataclass(slots=True)
class Replay:
    decider: Decider
    state: ClusterState = field(default_factory=ClusterState)
    stopwatch: Callable[[], float] = float
    """Seconds, for the latency of decisions; `float` says 0 every time, so that a replay is always the same."""
    outcome: ReplayResult = field(default_factory=ReplayResult)
    events: list[tuple[float, int, bool, Action]] = field(default_factory=list)
    """Time, number, whether the replay has to go on for it (not for a `Periodic` look), what to do."""
    waiting: deque[MuxJob] = field(default_factory=deque)
    """Submitted while the pools were full; tried again, in order, after each departure."""
    submitted: dict[str, float] = field(default_factory=dict)
    placed: dict[str, float] = field(default_factory=dict)
    number: int = 0

    def run(self, arrivals: Iterable[tuple[float, MuxJob]], failures: Sequence[Failure] = ()) -> ReplayResult:
        for at, job in arrivals:
            self._at(at, partial(self._arrive, job))
        for failure in failures:
            self._at(failure.at_s, partial(self._fail, failure))
        self._start_ticks()
        while self.state.jobs or any(counts for _, _, counts, _ in self.events):
            self._step()
        if self.waiting:
            names = ", ".join(job.id for job in self.waiting)
            raise ConfigError(f"even empty pools are too small for {names}: raise their limits or ask for fewer nodes")
        return self.outcome

    def _step(self) -> None:
        """One event: the next departure if it comes first (its nodes are free for a job that arrives then)."""
        leaver = min(self.state.jobs.values(), key=lambda job: job.finish_at(), default=None)
        finish = leaver.finish_at() if leaver else math.inf
        if self.events and self.events[0][0] < finish:
            now, _, _, action = heapq.heappop(self.events)
            self.outcome.ledger.advance(self.state, now)
            action(now)
        elif leaver is not None:
            self.outcome.ledger.advance(self.state, finish)
            self._depart(leaver, finish)

    def _at(self, when: float, action: Action, counts: bool = True) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, counts, action))

    def _arrive(self, job: MuxJob, now: float) -> None:
        self.submitted.setdefault(job.id, now)
        plan = self._decide("arrive", job.id, now, lambda: self.decider.arrive(self.state, job, now), job)
        if any(step.kind == "wait" for step in plan.steps):
            self.waiting.append(job)
            return
        self.placed.setdefault(job.id, now)
        placed = next(step for step in plan.steps if step.job == job.id and step.kind in ("open", "place"))
        how = "isolated" if placed.kind == "open" else "scaling" if placed.new_nodes else "direct"
        self.outcome.admissions[how] += 1

    def _depart(self, job: MuxJob, now: float) -> None:
        submitted, placed = self.submitted[job.id], self.placed[job.id]
        ended = Ended(job.id, submitted, job.profile.cold_s, placed - submitted, now, self._deadline(job))
        self.outcome.ended.append(ended)
        self._decide("depart", job.id, now, lambda: self.decider.depart(self.state, job.id, now))
        self._retry(now)

    def _deadline(self, job: MuxJob) -> float:
        return job.deadline

    def _fail(self, failure: Failure, now: float) -> None:
        job = self.state.jobs.get(failure.job)
        if job is None:
            return  # not here yet, or done already: nothing to kill
        kept = replace(job, done=math.floor(job.done_at(now)), pace=0.0)
        self._decide("fail", job.id, now, lambda: self.decider.depart(self.state, job.id, now, "failed"))
        self._at(failure.resubmitted_s, partial(self._arrive, kept))
        self._retry(now)

    def _retry(self, now: float) -> None:
        for _ in range(len(self.waiting)):
            self._arrive(self.waiting.popleft(), now)

    def _decide(
        self, event: str, name: str, now: float, ask: Callable[[], Plan], arriving: MuxJob | None = None
    ) -> Plan:
        began = self.stopwatch()
        plan = ask()
        latency = (self.stopwatch() - began) * 1000
        moved = [self.state.jobs[step.job] for step in plan.steps if step.kind == "move"]
        before = {job.id: max(job.resumes_at, now) for job in moved}
        for job in moved:
            self.outcome.ledger.late_iteration(job, job.profile.move_s)
        self.decider.apply(self.state, plan, now, arriving)
        self.outcome.moves += len(moved)
        self.outcome.paused_s += sum(max(0.0, job.resumes_at - before[job.id]) for job in moved)
        if plan:
            steps = tuple(f"{step.kind} {step.job}: {step.why}" for step in plan.steps)
            self.outcome.decisions.append(Decision(now, event, name, steps, latency))
        return plan

    def _start_ticks(self) -> None:
        if isinstance(self.decider, Periodic):
            self._at(self.decider.every_s, partial(self._tick, self.decider), counts=False)

    def _tick(self, decider: Periodic, now: float) -> None:
        self._decide("tick", "", now, lambda: decider.tick(self.state, now))
        self._at(now + decider.every_s, partial(self._tick, decider), counts=False)
