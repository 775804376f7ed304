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
from dataclasses import dataclass, field
from functools import partial

from rollweave.mux.decisions.seats import seat_in, seats_of
from rollweave.mux.model.job import MuxJob
from rollweave.mux.permits import Permit, PermitTable
from rollweave.mux.simulation.books import SLACK
from rollweave.mux.simulation.replay import Action, Replay
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
    life: int = 0
    """Events of an earlier life are void: the job was moved meanwhile."""

    @property
    def finished(self) -> bool:
        return self.done >= self.job.n_iters


@dataclass(slots=True)
class PhaseReplay(Replay):
    """The replay with real phases: decisions see whole iterations only, and a job leaves when its last phase ends."""

    table: PermitTable = field(default_factory=PermitTable)
    runners: dict[str, Runner] = field(default_factory=dict)
    ends: dict[str, list[float]] = field(default_factory=dict)
    """When each job's iterations ended."""
    iterations: int = 0
    iterations_in_slo: int = 0

    def _step(self) -> None:
        now, _, _, action = heapq.heappop(self.events)
        action(now)

    def _at(self, when: float, action: Action, counts: bool = True) -> None:
        Replay._at(self, when, partial(self._carry_out, action), counts)

    def _carry_out(self, action: Action, now: float) -> None:
        """Do what changes the groups: with true figures before it, and the phases follow it."""
        self._settle(now)
        action(now)
        self._follow(now)

    def _settle(self, now: float) -> None:
        """Book the time since the last decision, and tell the scheduler what is really done: whole iterations only."""
        ledger = self.outcome.ledger
        ledger.advance(self.state, now)
        ledger.iterations, ledger.iterations_in_slo = self.iterations, self.iterations_in_slo
        for runner in self.runners.values():
            runner.job.report(float(runner.done), now)

    def _follow(self, now: float) -> None:
        """Carry out what the scheduler has decided: jobs that are new, that moved, that are gone."""
        for name in self.runners.keys() - self.state.jobs.keys():
            del self.runners[name]
            self.table.leave(name)
        for name, job in self.state.jobs.items():
            runner, home = self.runners.get(name), self.state.home[name]
            if runner is None or runner.job is not job:
                runner = self.runners[name] = Runner(job, home, int(job.done))
            elif runner.home == home and job.moved_at != now:
                continue
            self.table.leave(name)
            runner.home, runner.permit, runner.life = home, None, self.number
            self._end_phase_at(max(now, job.resumes_at), runner)  # it joins after its cold start or its pause
        self.table.reseat(seats_of(self.state))
        self._start_granted(now)

    def _end_phase_at(self, when: float, runner: Runner) -> None:
        Replay._at(self, when, partial(self._end_phase, runner.job.id, runner.life), counts=False)

    def _end_phase(self, name: str, life: int, now: float) -> None:
        runner = self.runners.get(name)
        if runner is None or runner.life != life:
            return
        trained = runner.permit is not None and runner.permit.pool == "train"
        self._go_on(runner, now)
        if trained and runner.finished:
            self._carry_out(partial(self._depart, runner.job), now)
        elif trained and self.state.groups[runner.home].mode == "fifo":
            # Under round robin the scheduler changes nothing after an iteration that took as long as planned.
            self._tell_iteration(runner.job, now)

    def _tell_iteration(self, job: MuxJob, now: float) -> None:
        """The scheduler hears of an iteration, as it does from the daemon."""
        self._settle(now)
        own = job.profile
        ask = partial(self.decider.observe, self.state, job.id, own.t_roll, own.t_train, now)
        if self._decide("observe", job.id, now, ask):
            self._follow(now)

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
        self.iterations += 1
        self.iterations_in_slo += now - runner.last_end <= runner.job.slo * runner.job.solo_s * (1 + SLACK)
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
            self._end_phase_at(now + (own.shared_train if shared else own.train), runner)
            return
        if runner.began < 0:
            runner.began = runner.last_end = now
            runner.job.deadline = now + runner.job.slo * (runner.job.n_iters - runner.done) * runner.job.solo_s
        self._end_phase_at(now + (own.shared_roll if shared else own.roll), runner)
