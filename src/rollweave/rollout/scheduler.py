"""RolloutScheduler: decides what is admitted, what a batch is made of, and how every task and attempt ended.

    admit ─▶ lease members ─▶ score what ended ─▶ collect it into groups ─▶ serve the oldest complete groups
      ▲            ▲ again, after a failure               │ filtered, failed         │
      └────────────┴──────────────────────────────────────┴──────────────────────────┘ what ends makes room

It lives in the driver and owns the ledger; hosts and engines hold nothing that it could not issue again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, floor
from typing import Any

from rollweave.clock import Clock
from rollweave.errors import EnvironmentFailed, RewardFailed
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.groups import Leasing, RolloutSettings, RunningGroup
from rollweave.rollout.ledger import AttemptEnd, Ledger, LedgerError, TaskEnd
from rollweave.rollout.link import Lease, Report
from rollweave.rollout.scoring import Scoring
from rollweave.rollout.staleness import GroupFilter, GroupInLine, SampleBuffer, Selection, StalenessBound
from rollweave.rollout.state import SchedulerState
from rollweave.tasks import Cursor
from rollweave.trajectory import Batch, Group, Trajectory

HOPELESS_ATTEMPTS = 16
"""A run whose first episodes all fail has a broken environment or reward, not bad luck: it stops with their error."""


class RolloutScheduler:
    def __init__(
        self,
        settings: RolloutSettings,
        bound: StalenessBound,
        cursor: Cursor,
        dispatcher: Dispatcher,
        scoring: Scoring,
        clock: Clock,
        recorder: Emitter,
    ) -> None:
        self.settings = settings
        self._rollout = settings.rollout
        self.bound = bound
        self.cursor = cursor
        self.ledger = Ledger(recorder)
        self.buffer = SampleBuffer(bound)
        self.engine_version = 0
        self.next_step = 0
        self._filter = GroupFilter(settings.rollout.filter)
        self._leasing = Leasing(settings, self.ledger, dispatcher, partial(self._safely, self._book))
        self._scoring = scoring
        self._clock = clock
        self._recorder = recorder
        self.running: dict[int, RunningGroup] = {}
        self._changed = asyncio.Event()
        """A group has ended."""
        self._news = asyncio.Event()
        """An episode has ended."""
        self._failures: Counter[AttemptEnd] = Counter()
        self._any_played = False
        self._any_scored = False
        self._broken: Exception | None = None
        self._closed = False

    # ------------------------------------------------------------------------------------- what pipelines call

    def advance(self, version: int) -> None:
        """Engines now generate with `version`; admit what that allows."""
        self.engine_version = version
        for group in self.running.values():
            if group.version < version and not self._leasing.begun(group):
                group.version = version  # it will not hold an older token
                self._recorder.emit("group.renewed", group=group.id, version=version)
        self._admit()

    async def get_batch(self, step: int) -> Batch:
        """The groups train step `step` consumes, as soon as there are enough and none is left behind too old."""
        self.next_step = step
        self._admit()
        with self._clock.wait("trainer", "", self._rollout.deadlines.get_batch) as wait:
            while (selection := self._select(step)) is None:
                wait.what = self._what_is_missing(step)
                self._changed.clear()
                await self._changed.wait()
        batch = Batch(step, [self.buffer.take(id) for id in selection.consumed])
        self._check_staleness(batch)
        self.next_step = step + 1
        self._recorder.emit("batch.ready", step=step, groups=[group.id for group in batch.groups])
        self._give_up(selection)
        self._admit()
        return batch

    async def ended(self, share: float) -> None:
        """Waits until this share of the episodes of the next batch has ended."""
        wanted = share * self.bound.groups_per_step * self._rollout.group_size
        while self._episodes_ended() < wanted:
            self._news.clear()
            await self._news.wait()

    def _episodes_ended(self) -> int:
        """With a filter only those of groups that have passed it."""
        whole = sum(len(group.members) for group in self.buffer.groups.values())
        if self._rollout.filter != "none":
            return whole
        return whole + sum(len(group.finished) + len(group.scoring) for group in self.running.values())

    def trained(self, batch: Batch) -> None:
        """The train step is done: book its groups and their attempts."""
        for group in batch.groups:
            self._end_group(group.id, group.members, TaskEnd.TRAINED, AttemptEnd.TRAINED)

    def close(self) -> None:
        """Training has ended: reports and rewards that still arrive are ignored."""
        self._closed = True

    # ------------------------------------------------------------------------------------------------ admission

    def _admit(self) -> None:
        while self._broken is None and self._has_room():
            self._admit_group()

    def _has_room(self) -> bool:
        """By the staleness bound; with a filter, for as many as it takes for enough of them to survive."""
        room = self.bound.room(self.next_step, self.engine_version) - len(self.buffer)
        if self.next_step == self.engine_version:
            # While a step waits for its batch, redundant groups may race for it, even if no later step can take them.
            room = max(room, ceil(self.bound.groups_per_step * (1 + self._rollout.redundant_groups)) - len(self.buffer))
        if len(self.running) < room:
            return True
        if room <= 0 or self._leasing.dispatcher.free <= 0:  # over-issue only into environments that would stand idle
            return False
        return len(self.running) < floor(room / self._filter.survivors)

    @property
    def _over_issues(self) -> bool:
        """Whether more may be admitted than the bound has places for; else all that is admitted finds one."""
        return self._rollout.filter != "none" or self._rollout.redundant_groups > 0

    def _admit_group(self) -> None:
        number = self.cursor.position
        members = self.settings.members
        group = RunningGroup(number, self.engine_version, task=self.cursor.next(), members=members)
        self.running[number] = group
        self.ledger.admit(number)
        self._recorder.emit(
            "group.admit",
            group=number,
            task=group.task.id,
            version=self.engine_version,
            next_step=self.next_step,
            ahead=len(self.running) + len(self.buffer) - 1,
        )
        self._leasing.issue(group, range(members))

    def _try_again(self, group: RunningGroup, member: int) -> None:
        group.failures[member] = group.failures.get(member, 0) + 1
        if group.failures[member] > self._rollout.max_retries:
            self._lose_member(group, member)
            return
        again = partial(self._safely, self._issue_again, group, member, group.requeues)
        self._clock.later(f"retry {group.id}.{member}", self._leasing.pause(group, member), again)

    def _issue_again(self, group: RunningGroup, member: int, requeues: int) -> None:
        if self.running.get(group.id) is group and group.requeues == requeues:  # it is still wanted
            self._recorder.emit("member.retry", group=group.id, member=member)
            self._leasing.issue(group, [member], first=True)

    # -------------------------------------------------------------------------------------------------- reports

    def _safely(self, book: Callable[..., None], *heard: Any) -> None:
        """Around callbacks, where an exception would be lost: the next `get_batch` raises it."""
        if self._closed:
            return
        try:
            book(*heard)
        except Exception as error:  # the boundary between callbacks and the trainer that waits
            self._break(error)

    def _book(self, lease: Lease, report: Report) -> None:
        trajectory = report.trajectory
        self._recorder.emit(
            "trajectory.end",
            id=trajectory.id,
            outcome=str(trajectory.outcome),
            turns=len(trajectory.turns),
            tokens=trajectory.sampled_tokens,
            reward=None if report.awaited else trajectory.reward,
            version=trajectory.oldest_version,
            reward_failed=report.reward_failed,
            cause=trajectory.cause,
        )
        if (end := self._leasing.unwanted.pop(lease.id, None)) is not None:
            self.ledger.end_attempt(lease.id, end, trajectory.sampled_tokens)
            return
        group = self.running[lease.group]
        del group.leases[lease.member]
        if report.host_died:
            self.ledger.end_attempt(lease.id, AttemptEnd.INFRA_FAILED, 0)
            self._leasing.issue(group, [lease.member], first=True)
        elif report.reward_failed:
            self._end_failed(trajectory, AttemptEnd.REWARD_FAILED)
            self._lose_member(group, lease.member)
        elif trajectory.outcome is not None and trajectory.outcome.trainable:
            self._any_played = True
            if report.awaited:
                self._begin_scoring(group, report)
            else:
                self._finish_member(group, trajectory)
        else:
            self._end_failed(trajectory, AttemptEnd.INFRA_FAILED)
            self._try_again(group, lease.member)

    def _finish_member(self, group: RunningGroup, trajectory: Trajectory) -> None:
        self._any_scored = True
        group.finished.append(trajectory)
        self._member_ended(group)

    def _end_failed(self, trajectory: Trajectory, end: AttemptEnd) -> None:
        self.ledger.end_attempt(trajectory.id, end, trajectory.sampled_tokens)
        self._failures[end] += 1
        unscored = end is AttemptEnd.REWARD_FAILED
        any_success = self._any_scored if unscored else self._any_played
        if not any_success and self._failures[end] >= HOPELESS_ATTEMPTS:
            kind = RewardFailed if unscored else EnvironmentFailed
            self._break(
                kind(
                    f"the first {self._failures[end]} episodes all failed; the last one: {trajectory.cause}\n"
                    f"try it alone: {self.settings.try_alone}"
                )
            )

    def _lose_member(self, group: RunningGroup, member: int) -> None:
        group.lost.append(member)
        self._member_ended(group)

    def _member_ended(self, group: RunningGroup) -> None:
        """The group may be complete: with enough members, the others are surplus.

        Enough means scored, not only played: a reward that fails takes its member away, and one of the others steps in.
        """
        self._news.set()
        if len(group.finished) < self._rollout.group_size and not group.ended:
            return
        del self.running[group.id]
        self._abandon(group, AttemptEnd.SURPLUS)
        whole = Group(group.id, group.task, group.finished)
        # The reward of a single member has nothing to be compared with.
        if len(whole.members) < min(2, self._rollout.group_size):
            self._end_group(group.id, whole.members, TaskEnd.FAILED, AttemptEnd.ABORTED)
            self._recorder.emit("group.failed", group=group.id, task=group.task.id)
        elif not self._filter.keeps(whole):
            self._end_group(group.id, whole.members, TaskEnd.FILTERED, AttemptEnd.FILTERED)
            self._recorder.emit("group.filtered", group=group.id, reward=whole.members[0].reward)
        else:
            self.buffer.put(whole)
            self._recorder.emit("group.complete", group=group.id, members=len(whole.members))
        self._admit()
        self._changed.set()

    def _abandon(self, group: RunningGroup, cause: AttemptEnd) -> None:
        """Members that are still played or scored are not wanted any more."""
        self._leasing.cancel(group, cause)
        for trajectory in group.scoring.values():
            self._scoring.forget(trajectory.id)
            self.ledger.end_scoring(trajectory.id)
            self.ledger.end_attempt(trajectory.id, cause, trajectory.sampled_tokens)

    # -------------------------------------------------------------------------------------------------- rewards

    def _begin_scoring(self, group: RunningGroup, report: Report) -> None:
        """The episode has ended and its slot is free; the member is not complete before its reward has come."""
        trajectory = report.trajectory
        group.scoring[trajectory.id] = trajectory
        self._news.set()
        self._score(trajectory, report.host, report.awaited)

    def _score(self, trajectory: Trajectory, holder: int | None = None, names: Sequence[str] = ()) -> None:
        self.ledger.begin_scoring(trajectory.id)
        self._scoring.score(trajectory, holder, names, partial(self._safely, self._book_reward))

    def _book_reward(self, trajectory: Trajectory, succeeded: bool) -> None:
        group = self.running[trajectory.group]
        del group.scoring[trajectory.id]
        self.ledger.end_scoring(trajectory.id)
        if succeeded:
            self._finish_member(group, trajectory)
        else:
            self._end_failed(trajectory, AttemptEnd.REWARD_FAILED)
            self._lose_member(group, trajectory.member)

    # ------------------------------------------------------------------------------------------------ selection

    def _select(self, step: int) -> Selection | None:
        if self._broken is not None:
            raise self._broken
        start_only = self.settings.policy == "start_only"
        if self._over_issues and not start_only:
            for id in self.buffer.left_over(step):
                self._discard(id, AttemptEnd.SURPLUS)
                self._admit()
        running = [
            GroupInLine(group.id, group.version, complete=False, expendable=self._expendable(group))
            for group in self.running.values()
        ]
        all_stay = self.settings.policy == "wait" and not self._over_issues
        if all_stay and not self.buffer.has_batch_in_order(running):
            return None
        return self.buffer.select(step, running, self._filter.survivors, start_only)

    def _expendable(self, group: RunningGroup) -> bool:
        return self.settings.policy == "drop" or (
            self.settings.policy == "requeue" and group.requeues < self.settings.max_requeues
        )

    def _give_up(self, selection: Selection) -> None:
        for id in selection.surplus:
            self._discard(id, AttemptEnd.SURPLUS)
        for id in selection.stale:
            if self.settings.policy == "requeue" and id in self.running:
                self._requeue(self.running[id])
            else:
                self._discard(id, AttemptEnd.STALE)

    def _discard(self, id: int, cause: AttemptEnd) -> None:
        """The group can no longer be consumed in time."""
        if (group := self.running.pop(id, None)) is not None:
            self._abandon(group, cause)
        finished = group.finished if group is not None else self.buffer.take(id).members
        self._end_group(id, finished, TaskEnd.DROPPED_STALE, cause)
        self._recorder.emit("group.dropped", group=id, cause=str(cause))

    def _requeue(self, group: RunningGroup) -> None:
        """Play the same task again, from the start and under the present weights."""
        self._abandon(group, AttemptEnd.STALE)
        for trajectory in group.finished:
            self.ledger.end_attempt(trajectory.id, AttemptEnd.STALE, trajectory.sampled_tokens)
        group.begin_again(self.engine_version)
        self._recorder.emit("group.requeued", group=group.id, version=group.version, times=group.requeues)
        self._leasing.issue(group, group.unfinished, first=True)

    def _end_group(self, id: int, members: list[Trajectory], task: TaskEnd, attempt: AttemptEnd) -> None:
        self.ledger.end_task(id, task)
        for member in members:
            self.ledger.end_attempt(member.id, attempt, member.sampled_tokens)

    # --------------------------------------------------------------------------------------------------- resume

    def state(self, version: int) -> SchedulerState:
        """What a checkpoint keeps, between two steps: `version` of them are trained."""
        return SchedulerState(
            version=version,
            cursor=self.cursor.position,
            ledger=self.ledger.state(),
            buffered=list(self.buffer.groups.values()),
            open=[group.state() for group in self.running.values()],
            kept_lately=list(self._filter.kept_lately),
        )

    def restore(self, state: SchedulerState) -> None:
        """Go on from a checkpoint: finished members are kept, rewards under way are asked for again, episodes too."""
        self.engine_version = self.next_step = state.version
        self.cursor.position = state.cursor
        self.ledger.restore(state.ledger)
        for whole in state.buffered:
            self.buffer.put(whole)
        self._filter.kept_lately.extend(state.kept_lately)
        self._any_played = self._any_scored = bool(state.version)
        for group in state.open:
            task = self.cursor.source.task(group.id)
            self.running[group.id] = RunningGroup.from_state(group, task, self.settings.members)
        kept = [trajectory for group in state.buffered for trajectory in group.members]
        kept += [trajectory for group in state.open for trajectory in (*group.finished, *group.scoring.values())]
        for attempt in sorted(self.ledger.open_attempts - {trajectory.id for trajectory in kept}):
            self.ledger.end_attempt(attempt, AttemptEnd.ABORTED, 0)
        for running in self.running.values():
            for trajectory in running.scoring.values():
                self._score(trajectory)
            self._leasing.issue(running, running.unfinished)

    # -------------------------------------------------------------------------------------------------- helpers

    def _break(self, error: Exception) -> None:
        self._broken = error
        self._changed.set()

    def _what_is_missing(self, step: int) -> str:
        have, need = len(self.buffer), self.bound.groups_per_step
        if have >= need and self.running:
            oldest = min(self.running.values(), key=lambda group: (group.version, group.id))
            return f"group {oldest.id}, which is next: {_under_way(oldest)}"
        return f"batch {step}: {have} of {need} groups"

    def _check_staleness(self, batch: Batch) -> None:
        """The bound is kept by admission; this is the check that it was, where samples are consumed."""
        staleness = [batch.step - group.oldest_version for group in batch.groups]
        if self.settings.policy != "start_only" and not self.bound.keeps(staleness):
            raise LedgerError(
                f"step {batch.step}: the staleness bound (alpha) {self.bound.alpha:g} is exceeded: {sorted(staleness)}"
            )


def _under_way(group: RunningGroup) -> str:
    if group.unfinished:
        return f"member {_some(group.unfinished)} still plays"
    return f"member {_some([trajectory.member for trajectory in group.scoring.values()])} is being scored"


def _some(members: list[int]) -> str:
    return ", ".join(map(str, members[:3])) + (" ..." if len(members) > 3 else "")
