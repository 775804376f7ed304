"""Simulates every phase of every job: what the replay with mean rates leaves out.

A job rolls out on its nodes, then trains on the train nodes of its group, and so on. Which job may begin next is
decided by the `PermitTable` of the real daemon (mux/permits.py): a job asks for a permit, runs its phase when it is
granted, hands it back and asks for the next. A new job, or one that was moved, joins after its cold start or its
pause; a job that is moved loses the iteration that it was in.

What the simulation leaves out: cold starts and profiling use no node here (they are seconds during which the job is
away), and no rollout hands back nodes before its end (the experiments model tails as mean rates: `Migration`).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from functools import partial

from rollweave.mux.decisions.seats import seat_in, seats_of
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.state import ClusterState
from rollweave.mux.permits import Permit, PermitTable
from rollweave.mux.simulation.replay import Replay
from rollweave.pipelines.permits import SharedPool


@dataclass(slots=True)
class Runner:
    """One job between its phases."""

    job: MuxJob
    home: int
    done: int
    permit: Permit | None = None
    """What it runs on now; None: it waits for a permit or is away."""
    began: float = -1.0
    """The start of its first rollout; the clock of its SLO starts here."""
    last_end: float = 0.0
    iterations_in_slo: int = 0
    life: int = 0
    """Events of an earlier life are void: the job was moved meanwhile."""

    @property
    def finished(self) -> bool:
        return self.done >= self.job.n_iters

    @property
    def trains(self) -> bool:
        return self.permit is not None and self.permit.pool == "train"


@dataclass(slots=True)
class PhaseWorld:
    state: ClusterState
    table: PermitTable = field(default_factory=PermitTable)
    runners: dict[str, Runner] = field(default_factory=dict)
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    """Time, number, job, life: a phase ends, or a job that was away joins."""
    number: int = 0
    ends: dict[str, list[float]] = field(default_factory=dict)
    """When each job's iterations ended."""

    def follow(self, now: float) -> None:
        """Carry out what the scheduler has decided: jobs that are new, that moved, that are gone."""
        for name in self.runners.keys() - self.state.jobs.keys():
            del self.runners[name]
            self.table.leave(name)
        for name, job in self.state.jobs.items():
            runner, home = self.runners.get(name), self.state.home[name]
            if runner is None or runner.job is not job:
                self.table.leave(name)
                self._send_away(Runner(job, home, int(job.done)), now)
            elif runner.home != home or job.moved_at == now:
                self.table.leave(name)
                runner.home, runner.permit = home, None
                self._send_away(runner, now)
        self.table.reseat(seats_of(self.state))
        self._start_granted(now)

    def run(self, until: float) -> tuple[float, Runner] | None:
        """Run phases up to `until`, or to the first end of an iteration before it that the scheduler has to hear of."""
        while self.events and self.events[0][0] < until:
            now, _, name, life = heapq.heappop(self.events)
            runner = self.runners.get(name)
            if runner is None or runner.life != life:
                continue
            trained = runner.trains
            self._go_on(runner, now)
            # Under round robin the scheduler changes nothing after an iteration that took as long as planned.
            if trained and (runner.finished or self.state.groups[runner.home].mode == "fifo"):
                return now, runner
        return None

    def report(self, now: float) -> None:
        """Tell the scheduler what is really done: whole iterations only."""
        for runner in self.runners.values():
            runner.job.report(float(runner.done), now)

    def _send_away(self, runner: Runner, now: float) -> None:
        """The job joins its group when its cold start or its pause is over."""
        self.runners[runner.job.id] = runner
        self.number += 1
        runner.life = self.number
        self._event(runner, max(now, runner.job.resumes_at))

    def _event(self, runner: Runner, when: float) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, runner.job.id, runner.life))

    def _go_on(self, runner: Runner, now: float) -> None:
        """A phase, or the time that a job was away, is over: the job asks for its next permit."""
        name, permit = runner.job.id, runner.permit
        if permit is None:
            self.table.join(name, seat_in(self.state.groups[runner.home], name))
            if runner.began < 0:
                runner.last_end = now
        else:
            self.table.give_back(name, permit.epoch)
            runner.permit = None
            if permit.pool == "train":
                self._count_iteration(runner, now)
        if not runner.finished:
            self._ask(runner, after=permit)
            self._start_granted(now)

    def _ask(self, runner: Runner, after: Permit | None) -> None:
        pool: SharedPool = "train" if after is not None and after.pool == "rollout" else "rollout"
        name = runner.job.id
        if pool == "train" and runner.done + 1 >= runner.job.n_iters:
            self.table.leave_after_this_lap(name)
        self.table.ask(name, f"{runner.done}", pool, self.table.tenants[name].seat.nodes[pool])

    def _count_iteration(self, runner: Runner, now: float) -> None:
        runner.done += 1
        runner.iterations_in_slo += now - runner.last_end <= runner.job.slo * runner.job.solo_s * (1 + 1e-9)
        runner.last_end = now
        self.ends.setdefault(runner.job.id, []).append(now)

    def _start_granted(self, now: float) -> None:
        for permit in self.table.grant(now):
            self._start(self.runners[permit.job], permit, now)

    def _start(self, runner: Runner, permit: Permit, now: float) -> None:
        runner.permit = permit
        group = self.state.groups[runner.home]
        own, shared = group.phases[runner.job.id], len(group.pins) > 1
        if permit.pool == "train":
            self._event(runner, now + (own.shared_train if shared else own.train))
            return
        if runner.began < 0:
            runner.began = runner.last_end = now
            runner.job.deadline = now + runner.job.slo * (runner.job.n_iters - runner.done) * runner.job.solo_s
        self._event(runner, now + (own.shared_roll if shared else own.roll))


@dataclass(slots=True)
class PhaseReplay(Replay):
    """The replay with real phases: decisions see whole iterations only, and a job leaves when its last phase ends."""

    world: PhaseWorld | None = None
    iterations: float = 0.0
    in_slo: float = 0.0

    def _step(self) -> bool:
        if self._over():
            return False
        world = self.world = self.world or PhaseWorld(self.state)
        until = self.events[0][0] if self.events else math.inf
        ended = world.run(until)
        now = until if ended is None else ended[0]
        self.outcome.ledger.advance(self.state, now)
        world.report(now)
        if ended is None:
            heapq.heappop(self.events)[3](now)
        elif ended[1].finished:
            self._book(ended[1])
            self._depart(ended[1].job, now)
        elif not self._heard(ended[1].job, now):
            return True
        world.follow(now)
        return True

    def _heard(self, job: MuxJob, now: float) -> bool:
        """The scheduler hears of an iteration, as it does from the daemon; true if it changed something."""
        own = job.profile
        ask = partial(self.decider.observe, self.state, job.id, own.t_roll, own.t_train, now)
        return bool(self._decide("observe", job.id, now, ask))

    def _book(self, runner: Runner) -> None:
        """Iterations as they really were, in place of the ledger's estimate."""
        self.iterations += runner.done
        self.in_slo += runner.iterations_in_slo
        self.outcome.ledger.iterations, self.outcome.ledger.iterations_in_slo = self.iterations, self.in_slo
