"""RolloutScheduler: alone decides what is admitted, what a batch is made of, and where everything ended.

It admits a group of episodes when the staleness bound allows, hands its members to the dispatcher, collects
their reports into groups, and serves complete groups to the trainer. It lives in the driver and owns the
ledger; hosts and engines hold nothing that it could not issue again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rollweave.clock import Clock
from rollweave.engines.protocol import Sampling
from rollweave.errors import EnvironmentFailed, RewardFailed
from rollweave.observability.events import Emitter
from rollweave.rollout.buffer import SampleBuffer
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.ledger import AttemptEnd, Ledger, LedgerError, TaskEnd
from rollweave.rollout.messages import Lease, Report
from rollweave.rollout.staleness import StalenessBound
from rollweave.seeds import derive
from rollweave.tasks import Cursor, Task
from rollweave.trajectory import Batch, Group, Trajectory

HOPELESS_ATTEMPTS = 16
"""A run whose first episodes all fail has a broken environment or reward, not bad luck: it stops with their error."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The numbers the scheduler works with."""

    group_size: int
    sampling: Sampling
    max_retries: int
    seed: int
    get_batch_timeout: float
    try_alone: str = "rollweave env check"
    """The command that shows a failing environment or reward by itself."""


@dataclass(slots=True)
class _RunningGroup:
    id: int
    task: Task
    version: int
    waiting_for: set[int]
    """Members that have not ended."""
    members: list[Trajectory] = field(default_factory=list)


class RolloutScheduler:
    def __init__(
        self,
        plan: RolloutPlan,
        bound: StalenessBound,
        cursor: Cursor,
        dispatcher: Dispatcher,
        clock: Clock,
        recorder: Emitter,
    ) -> None:
        self.plan = plan
        self.bound = bound
        self.cursor = cursor
        self.ledger = Ledger()
        self.buffer = SampleBuffer(bound)
        self.engine_version = 0
        self.next_step = 0
        self._dispatcher = dispatcher
        self._clock = clock
        self._recorder = recorder
        self._running: dict[int, _RunningGroup] = {}
        self._changed = asyncio.Event()
        self._failures_so_far = 0
        self._any_success = False
        self._broken: Exception | None = None

    # ------------------------------------------------------------------------------------- what pipelines call

    def advance(self, version: int) -> None:
        """Engines now generate with `version`; admit what that allows."""
        self.engine_version = version
        self._admit()

    async def get_batch(self, step: int) -> Batch:
        """The groups train step `step` consumes, as soon as there are enough and none is left behind too old."""
        self.next_step = step
        with self._clock.wait("trainer", "", self.plan.get_batch_timeout) as wait:
            while (batch := self._take(step)) is None:
                wait.what = self._what_is_missing(step)
                self._changed.clear()
                await self._changed.wait()
        self._check_staleness(batch)
        self.next_step = step + 1
        self._recorder.emit("batch.ready", step=step, groups=[group.id for group in batch.groups])
        self._admit()
        return batch

    def trained(self, batch: Batch) -> None:
        """The train step is done: book its groups and their attempts."""
        for group in batch.groups:
            self.ledger.end_task(group.id, TaskEnd.TRAINED)
            for member in group.members:
                self.ledger.end_attempt(member.id, AttemptEnd.TRAINED, member.sampled_tokens)

    @property
    def running(self) -> int:
        return len(self._running)

    # ------------------------------------------------------------------------------------------------ admission

    def _admit(self) -> None:
        while self.bound.admits(len(self._running) + len(self.buffer), self.next_step, self.engine_version):
            self._admit_group()

    def _admit_group(self) -> None:
        number = self.cursor.position
        task = self.cursor.next()
        group = _RunningGroup(number, task, self.engine_version, set(range(self.plan.group_size)))
        self._running[number] = group
        self.ledger.admit(number)
        self._recorder.emit(
            "group.admit",
            group=number,
            task=task.id,
            version=self.engine_version,
            next_step=self.next_step,
            ahead=len(self._running) + len(self.buffer) - 1,
        )
        for member in range(self.plan.group_size):
            self._issue(group, member, attempt=0)

    def _issue(self, group: _RunningGroup, member: int, attempt: int) -> None:
        lease = Lease(
            id=f"{group.id}.{member}.{attempt}",
            group=group.id,
            member=member,
            attempt=attempt,
            task=group.task,
            # Not a function of the attempt: an episode that is played again samples the same answers.
            seed=derive(self.plan.seed, "sample", group.id, member),
            sampling=self.plan.sampling,
            version=group.version,
        )
        self.ledger.issue(lease.id)
        self._dispatcher.submit(lease, self._on_report, first=attempt > 0)

    # -------------------------------------------------------------------------------------------------- reports

    def _on_report(self, lease: Lease, report: Report) -> None:
        """Reports arrive in callbacks, where an exception would be lost: the next `get_batch` raises it."""
        try:
            self._book(lease, report)
        except Exception as error:  # the boundary between callbacks and whoever waits
            self._broken = error
            self._changed.set()

    def _book(self, lease: Lease, report: Report) -> None:
        group = self._running[lease.group]
        trajectory = report.trajectory
        outcome = trajectory.outcome
        self._recorder.emit(
            "trajectory.end",
            id=trajectory.id,
            outcome=str(outcome),
            turns=len(trajectory.turns),
            tokens=trajectory.sampled_tokens,
            reward=trajectory.reward,
            cause=trajectory.cause,
        )
        if report.reward_failed:
            self._end_failed(trajectory, AttemptEnd.REWARD_FAILED)
            self._end_member(group, lease.member)
        elif outcome is not None and outcome.trainable:
            self._any_success = True
            group.members.append(trajectory)
            self._end_member(group, lease.member)
        else:
            self._end_failed(trajectory, AttemptEnd.INFRA_FAILED)
            self._try_again(group, lease)

    def _end_failed(self, trajectory: Trajectory, end: AttemptEnd) -> None:
        self.ledger.end_attempt(trajectory.id, end, trajectory.sampled_tokens)
        self._failures_so_far += 1
        if not self._any_success and self._failures_so_far >= HOPELESS_ATTEMPTS:
            kind = RewardFailed if end is AttemptEnd.REWARD_FAILED else EnvironmentFailed
            self._broken = kind(
                f"the first {self._failures_so_far} episodes all failed; the last one: {trajectory.cause}\n"
                f"try it alone: {self.plan.try_alone}"
            )
            self._changed.set()

    def _try_again(self, group: _RunningGroup, lease: Lease) -> None:
        if lease.attempt < self.plan.max_retries:
            self._issue(group, lease.member, lease.attempt + 1)
        else:
            self._end_member(group, lease.member)

    def _end_member(self, group: _RunningGroup, member: int) -> None:
        """A member has ended for good, with a trajectory or without; the group may be complete."""
        group.waiting_for.discard(member)
        if group.waiting_for:
            return
        del self._running[group.id]
        # A lone survivor has nobody to be compared with.
        if len(group.members) >= min(2, self.plan.group_size):
            self.buffer.put(Group(group.id, group.task, group.members))
            self._recorder.emit("group.complete", group=group.id, members=len(group.members))
        else:
            self._fail_group(group)
        self._changed.set()

    def _fail_group(self, group: _RunningGroup) -> None:
        for survivor in group.members:
            self.ledger.end_attempt(survivor.id, AttemptEnd.ABORTED, survivor.sampled_tokens)
        self.ledger.end_task(group.id, TaskEnd.FAILED)
        self._recorder.emit("group.failed", group=group.id, task=group.task.id)
        if self._broken is None:
            self._admit()

    # -------------------------------------------------------------------------------------------------- helpers

    def _take(self, step: int) -> Batch | None:
        if self._broken is not None:
            raise self._broken
        return self.buffer.take(step, self._running_versions())

    def _running_versions(self) -> dict[int, int]:
        return {group.id: group.version for group in self._running.values()}

    def _what_is_missing(self, step: int) -> str:
        have, need = len(self.buffer), self.bound.groups_per_step
        if have >= need and self._running:
            oldest = min(self._running.values(), key=lambda group: (group.version, group.id))
            return f"group {oldest.id}, which may not get any older"
        return f"batch {step}: {have} of {need} groups"

    def _check_staleness(self, batch: Batch) -> None:
        """The bound is kept by admission; this is the check that it was, where samples are consumed."""
        if max(batch.staleness()) > self.bound.alpha:
            raise LedgerError(f"step {batch.step}: staleness {max(batch.staleness())} exceeds {self.bound.alpha}")
