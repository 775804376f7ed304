"""Every phase of every job, one by one: what the fluid replay leaves out.

A job rolls out on its nodes, then trains on its group's train nodes, and so on. Under round robin a node serves its
jobs in the group's order, lap by lap, and waits for whose turn it is; first come, first served takes them as they queue
up. Who joins does so at the tail of the running lap; who moves loses the iteration it was in. Two jobs of a group
never hold the same node, and a rollout on several nodes starts when it is first on all of them.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.state import ClusterState
from rollweave.mux.simulation.replay import Replay

RunnerStage = Literal["away", "roll queue", "roll", "train queue", "train"]
TRAIN = "train"
Where = int | str
"""A rollout node, or the train nodes of a group."""
PhaseNode = tuple[int, Where]


@dataclass(slots=True)
class Runner:
    """One job between its phases."""

    job: MuxJob
    home: int
    done: int
    stage: RunnerStage = "away"
    lap: int = 0
    queued: int = 0
    """When it took its place in a queue, as a count of all queueings so far."""
    began: float = -1.0
    """The first rollout; the SLO clock starts here."""
    last_end: float = 0.0
    iterations_in_slo: int = 0
    epoch: int = 0
    """Events of an earlier epoch are void: the job was moved."""
    held: tuple[PhaseNode, ...] = ()

    @property
    def finished(self) -> bool:
        return self.done >= self.job.n_iters

    def next_lap(self, where: Where) -> int:
        past = self.stage == "train" if where == TRAIN else self.stage in ("roll", "train queue", "train")
        return self.lap + past


@dataclass(slots=True)
class PhaseWorld:
    state: ClusterState
    runners: dict[str, Runner] = field(default_factory=dict)
    busy: set[PhaseNode] = field(default_factory=set)
    modes: dict[int, str] = field(default_factory=dict)
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    number: int = 0
    ends: dict[str, list[float]] = field(default_factory=dict)
    """When each job's iterations ended."""

    def follow(self, now: float) -> None:
        """The scheduler has decided: who is new, who moved, who is gone."""
        for name in self.runners.keys() - self.state.jobs.keys():
            self._stop(self.runners.pop(name))
        for name, job in self.state.jobs.items():
            runner, home = self.runners.get(name), self.state.home[name]
            if runner is None or runner.job is not job:
                runner = self.runners[name] = Runner(job, home, int(job.done), epoch=self.number)
                self._wake_at(runner, max(now, job.resumes_at))
            elif runner.home != home or job.moved_at == now:
                self._stop(runner)
                runner.home = home
                self._wake_at(runner, max(now, job.resumes_at))
        for group in self.state.groups.values():
            if self.modes.get(group.id) != group.mode:
                self._relap(group)
            self._serve(group, now)

    def run(self, until: float) -> tuple[float, Runner] | None:
        """Phases up to `until`, or to the first iteration before it that somebody has to hear of."""
        while self.events and self.events[0][0] < until:
            now, _, name, epoch = heapq.heappop(self.events)
            runner = self.runners.get(name)
            if runner is None or runner.epoch != epoch:
                continue
            trained = runner.stage == "train"
            self._ended(runner, now)
            # Under round robin nothing can come of an iteration that took what was planned.
            if trained and (runner.finished or self.state.groups[runner.home].mode == "fifo"):
                return now, runner
        return None

    def report(self, now: float) -> None:
        """Tell the scheduler what is really done: whole iterations only."""
        for runner in self.runners.values():
            runner.job.report(float(runner.done), now)

    def _wake_at(self, runner: Runner, when: float) -> None:
        runner.stage = "away"
        self._event(runner, when)

    def _event(self, runner: Runner, when: float) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, runner.job.id, runner.epoch))

    def _queue(self, runner: Runner, stage: RunnerStage) -> None:
        self.number += 1
        runner.stage, runner.queued = stage, self.number

    def _ended(self, runner: Runner, now: float) -> None:
        """A phase (or a pause) is over."""
        group = self.state.groups[runner.home]
        if runner.stage == "away":
            self._join(runner, group, now)
        elif runner.stage == "roll":
            self._free(runner)
            self._queue(runner, "train queue")
        else:
            self._free(runner)
            runner.done += 1
            runner.lap += 1
            runner.iterations_in_slo += now - runner.last_end <= runner.job.slo * runner.job.solo_s * (1 + 1e-9)
            runner.last_end = now
            self.ends.setdefault(runner.job.id, []).append(now)
            self._queue(runner, "roll queue")
        if not runner.finished:
            self._serve(group, now)

    def _join(self, runner: Runner, group: CoGroup, now: float) -> None:
        """At the tail of the lap that rolls out now: whoever is in it already is not held up."""
        others = [other for other in self._present(group) if other is not runner]
        runner.lap = max((other.lap + other.stage.startswith("train") for other in others), default=0)
        self._queue(runner, "roll queue")
        if runner.began < 0:
            runner.last_end = now

    def _present(self, group: CoGroup) -> list[Runner]:
        members = (self.runners.get(name) for name in group.order or group.jobs)
        return [runner for runner in members if runner and runner.stage != "away" and runner.home == group.id]

    def _relap(self, group: CoGroup) -> None:
        """Coming from first come, first served: everybody starts round robin in the same lap."""
        self.modes[group.id] = group.mode
        for runner in self._present(group):
            runner.lap = 0

    def _serve(self, group: CoGroup, now: float) -> None:
        """Start whatever may start."""
        present = self._present(group)
        for runner in present:
            if runner.stage == "roll queue" and self._first_on_all(runner, group, present):
                self._start(runner, group, now, "roll")
        first = [runner for runner in present if runner.stage == "train queue"]
        for runner in sorted(first, key=lambda runner: runner.queued):
            if self._turn(runner, TRAIN, group, present):
                self._start(runner, group, now, "train")
                break

    def _first_on_all(self, runner: Runner, group: CoGroup, present: list[Runner]) -> bool:
        return all(self._turn(runner, node, group, present) for node in self._pins(runner))

    def _pins(self, runner: Runner) -> tuple[int, ...]:
        return self.state.groups[runner.home].pins[runner.job.id]

    def _turn(self, runner: Runner, where: Where, group: CoGroup, present: list[Runner]) -> bool:
        if (group.id, where) in self.busy:
            return False
        rivals = [other for other in present if where == TRAIN or where in self._pins(other)]
        if group.mode == "fifo":
            waiting: RunnerStage = "train queue" if where == TRAIN else "roll queue"
            return runner.queued == min(other.queued for other in rivals if other.stage == waiting)
        laps = [other.next_lap(where) for other in rivals]
        return rivals[laps.index(min(laps))] is runner

    def _start(self, runner: Runner, group: CoGroup, now: float, stage: RunnerStage) -> None:
        own, shared = group.phases[runner.job.id], len(group.pins) > 1
        runner.held = ((group.id, TRAIN),) if stage == "train" else tuple((group.id, n) for n in self._pins(runner))
        self.busy.update(runner.held)
        if stage == "roll":
            seconds = own.shared_roll if shared else own.roll
            if runner.began < 0:
                runner.began = runner.last_end = now
                runner.job.deadline = now + runner.job.slo * (runner.job.n_iters - runner.done) * runner.job.solo_s
        else:
            seconds = own.shared_train if shared else own.train
        runner.stage = stage
        self._event(runner, now + seconds)

    def _free(self, runner: Runner) -> None:
        self.busy.difference_update(runner.held)
        runner.held = ()

    def _stop(self, runner: Runner) -> None:
        self._free(runner)
        self.number += 1
        runner.epoch = self.number


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
