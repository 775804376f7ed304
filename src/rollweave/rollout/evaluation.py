"""Evaluation beside training: greedy episodes on held-out tasks under one pinned version.

They use the same hosts and engines, but stand outside staleness and the ledger. The pipeline pins the version: it
awaits `settle` or `result` before the engines get other weights.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from rollweave.clock import Clock
from rollweave.config.control import EvaluationConfig, RolloutConfig
from rollweave.engines.protocol import Sampling
from rollweave.errors import EnvironmentFailed
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import Lease, Report
from rollweave.rollout.scoring import Scoring
from rollweave.seeds import derive
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory
from rollweave.versions import marked

EVALUATION_GROUP = -1
"""Evaluation episodes belong to no group."""


@dataclass(slots=True)
class Evaluation:
    version: int
    trajectories: list[Trajectory]
    failed: int

    @property
    def reward(self) -> float:
        return sum(t.reward for t in self.trajectories) / len(self.trajectories)

    @property
    def turns(self) -> float:
        return sum(len(t.turns) for t in self.trajectories) / len(self.trajectories)


@dataclass(slots=True)
class Evaluator:
    """Evaluates every so many versions and at the end. Without tasks it never does, and nothing waits for it."""

    config: EvaluationConfig
    rollout: RolloutConfig
    tasks: Sequence[Task]
    sampling: Sampling
    dispatcher: Dispatcher
    scoring: Scoring
    clock: Clock
    recorder: Emitter
    _reported: asyncio.Event = field(default_factory=asyncio.Event)
    _version: int = -1
    """The last one that was begun."""
    _under_way: bool = False
    _finished: list[Trajectory] = field(default_factory=list)
    _failed: list[Trajectory] = field(default_factory=list)
    _failures: Counter[int] = field(default_factory=Counter)
    """By task. A host that dies is not counted."""
    _tokens: int = 0
    _open: dict[str, Literal["played", "scored"]] = field(default_factory=dict)
    """By attempt: what happens to it now."""
    history: int = 0
    """Of the run, as in `Leasing`."""

    def due(self, version: int) -> bool:
        """Whether this version is to be evaluated."""
        return bool(self.tasks) and version % self.config.every == 0

    def start_if_due(self, version: int) -> None:
        if self.due(version):
            self.start(version)

    def start(self, version: int) -> None:
        """Begin to evaluate the version that the engines have now, unless that was done before; training goes on."""
        if not self.tasks or self._version == version:
            return
        self._version, self._under_way = version, True
        self._finished, self._failed, self._failures, self._tokens = [], [], Counter(), 0
        self.recorder.emit("eval.begin", version=version, tasks=len(self.tasks))
        for index in reversed(range(len(self.tasks))):  # each goes to the head of the line
            self._submit(index, tries=0)

    async def result(self) -> Evaluation | None:
        """Wait for the evaluation under way and take its result; None if there is none."""
        if not self._under_way:
            return None
        await self._wait("weight update")
        self._under_way = False
        if not self._finished:
            raise EnvironmentFailed(f"every evaluation episode failed; the last one: {self._failed[-1].cause}")
        self._finished.sort(key=lambda t: t.member)
        result = Evaluation(self._version, self._finished, len(self._failed))
        self.recorder.emit(
            "eval.end", version=self._version, reward=result.reward, failed=result.failed, tokens=self._tokens
        )
        return result

    async def settle(self) -> None:
        """Wait until the engines have done with it, so that they may get other weights or stand still; `result` tells
        later what came out."""
        if self._under_way:
            await self._wait("pipeline")

    def give_up(self, history: int) -> None:
        """The run goes back, and a new history begins: an evaluation under way is of a version that is abandoned."""
        given_up, self._open = self._open, {}
        for attempt, state in given_up.items():
            if state == "scored":
                self.scoring.forget(attempt)
            else:
                self.dispatcher.cancel(attempt)
        self._version, self._under_way, self.history = -1, False, history

    def reached_target(self, evaluation: Evaluation | None, step: int) -> bool:
        """Whether this evaluation, taken after a step, reaches the target."""
        target = self.config.target
        reached = evaluation is not None and target is not None and evaluation.reward >= target
        if reached:
            self.recorder.emit("target.reached", target=target, step=step)
        return reached

    async def _wait(self, who: str) -> None:
        """The deadline is for the next episode to end: an evaluation may take long, but not stand still."""
        while (ended := len(self._finished) + len(self._failed)) < len(self.tasks):
            what = f"evaluation of version {self._version}, {ended} of {len(self.tasks)} episodes done"
            with self.clock.wait(who, what, self.rollout.deadlines.get_batch):
                self._reported.clear()
                await self._reported.wait()

    def _submit(self, index: int, tries: int) -> None:
        lease = Lease(
            id=marked(f"eval.{self._version}.{index}.{tries}", self.history),
            group=EVALUATION_GROUP,
            member=index,
            tries=tries,
            task=self.tasks[index],
            seed=derive(self.tasks[index].seed, "evaluation"),
            sampling=self.sampling,
            version=self._version,
        )
        self._open[lease.id] = "played"
        if tries:
            self.recorder.emit("eval.retry", id=lease.id)
        self.dispatcher.submit([lease], self._on_report, first=True)

    def _on_report(self, lease: Lease, report: Report) -> None:
        trajectory = report.trajectory
        if self._open.pop(lease.id, None) is None:
            return  # it was given up
        self._tokens += trajectory.sampled_tokens
        if report.host_died:
            self._submit(lease.member, lease.tries + 1)
        elif report.awaited:
            self._open[lease.id] = "scored"
            self.scoring.score(trajectory, report.host, report.awaited, partial(self._on_end, lease))
        else:
            ended = trajectory.outcome is not None and trajectory.outcome.trainable
            self._on_end(lease, trajectory, ended and not report.reward_failed)

    def _on_end(self, lease: Lease, trajectory: Trajectory, succeeded: bool) -> None:
        """Played and scored, or failed on the way."""
        self._open.pop(lease.id, None)
        self._failures[lease.member] += not succeeded
        if succeeded:
            self._finished.append(trajectory)
        elif self._failures[lease.member] <= self.rollout.max_retries:
            self._submit(lease.member, lease.tries + 1)
        else:
            self._failed.append(trajectory)
        self._reported.set()
