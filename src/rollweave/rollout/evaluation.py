"""Evaluation beside training: greedy episodes on held-out tasks under one pinned version.

They use the same hosts and engines, but stand outside staleness and the ledger. The pipeline pins the version: it
awaits `settle` or `result` before the engines get other weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rollweave.clock import Clock
from rollweave.config.control import EvaluationConfig
from rollweave.engines.protocol import Sampling
from rollweave.errors import EnvironmentFailed
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import Lease, Report
from rollweave.rollout.scoring import Scoring
from rollweave.seeds import derive
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory

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


class Evaluator:
    def __init__(
        self,
        tasks: Sequence[Task],
        sampling: Sampling,
        dispatcher: Dispatcher,
        scoring: Scoring,
        clock: Clock,
        recorder: Emitter,
        max_retries: int,
        timeout: float,
    ) -> None:
        self.tasks = list(tasks)
        self._sampling = sampling
        self._dispatcher = dispatcher
        self._scoring = scoring
        self._clock = clock
        self._recorder = recorder
        self._max_retries = max_retries
        self._timeout = timeout
        self._reported = asyncio.Event()
        self._under_way = False
        self._finished: list[Trajectory] = []
        self._failed: list[Trajectory] = []
        self._tokens = 0
        self._version = 0

    def start(self, version: int) -> None:
        """Begin to evaluate the version the engines have now, unless that was begun and its result is not taken yet."""
        if self._under_way and self._version == version:
            return
        self._version = version
        self._finished, self._failed, self._tokens = [], [], 0
        self._under_way = True
        self._recorder.emit("eval.begin", version=version, tasks=len(self.tasks))
        for index in reversed(range(len(self.tasks))):  # each goes to the head of the line
            self._submit(index, attempt=0)

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
        self._recorder.emit(
            "eval.end", version=self._version, reward=result.reward, failed=result.failed, tokens=self._tokens
        )
        return result

    async def settle(self) -> None:
        """Wait until the engines have done with it; `result` tells later what came out."""
        if self._under_way:
            await self._wait("whoever wants the engines next")

    async def _wait(self, who: str) -> None:
        """The deadline is for the next episode to end: an evaluation may take long, but not stand still."""
        while (ended := len(self._finished) + len(self._failed)) < len(self.tasks):
            what = f"evaluation of version {self._version}, {ended} of {len(self.tasks)} episodes done"
            with self._clock.wait(who, what, self._timeout):
                self._reported.clear()
                await self._reported.wait()

    def _submit(self, index: int, attempt: int) -> None:
        lease = Lease(
            id=f"eval.{self._version}.{index}.{attempt}",
            group=EVALUATION_GROUP,
            member=index,
            attempt=attempt,
            task=self.tasks[index],
            seed=derive(self.tasks[index].seed, "evaluation"),
            sampling=self._sampling,
            version=self._version,
        )
        self._dispatcher.submit([lease], self._on_report, first=True)

    def _on_report(self, lease: Lease, report: Report) -> None:
        trajectory = report.trajectory
        self._tokens += trajectory.sampled_tokens
        if report.awaited:
            self._scoring.score(trajectory, report.host, report.awaited, partial(self._on_end, lease))
        else:
            ended = trajectory.outcome is not None and trajectory.outcome.trainable
            self._on_end(lease, trajectory, ended and not report.reward_failed, always_again=report.host_died)

    def _on_end(self, lease: Lease, trajectory: Trajectory, succeeded: bool, always_again: bool = False) -> None:
        """Played and scored, or failed on the way."""
        if succeeded:
            self._finished.append(trajectory)
        elif always_again or lease.attempt < self._max_retries:
            self._submit(lease.member, lease.attempt + 1)
        else:
            self._failed.append(trajectory)
        self._reported.set()


class EvaluationSchedule:
    """When a run evaluates: every so many versions and at the end, or never."""

    def __init__(self, config: EvaluationConfig, evaluator: Evaluator | None) -> None:
        """`evaluator`: none if there is nothing to evaluate on."""
        self._config = config
        self._evaluator = evaluator

    @property
    def wanted(self) -> bool:
        return self._evaluator is not None

    def due(self, version: int) -> bool:
        """Whether this version is to be evaluated."""
        return self._evaluator is not None and version % self._config.every == 0

    def start(self, version: int, last: bool = False) -> None:
        """Begin to evaluate what the engines have now, if it is due; training goes on meanwhile."""
        if self._evaluator is not None and (last or self.due(version)):
            self._evaluator.start(version)

    async def settle(self) -> None:
        """The weights that an evaluation looks at may not change before it has ended."""
        if self._evaluator is not None:
            await self._evaluator.settle()

    async def result(self) -> Evaluation | None:
        """Wait for the evaluation under way; None if there is none."""
        return None if self._evaluator is None else await self._evaluator.result()

    def reaches_target(self, evaluation: Evaluation | None) -> float | None:
        """The target, if this evaluation reaches it."""
        target = self._config.target
        return target if evaluation is not None and target is not None and evaluation.reward >= target else None
