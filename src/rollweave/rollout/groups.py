"""Groups that are being played, and the leases of their members.

RunningGroup holds what is known of a group. Leasing issues a lease for a member, issues another one after a failure,
and cancels leases that are not wanted any more. What a report means for its group, the scheduler decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

from rollweave.clock import Clock
from rollweave.config.control import RolloutConfig
from rollweave.engines.protocol import Sampling
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher, OnReport
from rollweave.rollout.ledger import AttemptEnd, Ledger
from rollweave.rollout.link import Lease
from rollweave.rollout.state import OpenGroup
from rollweave.seeds import derive, generator
from rollweave.tasks import Task
from rollweave.trajectory import Group

StalenessPolicy = Literal["wait", "requeue", "drop", "start_only"]
"""What becomes of running work that would exceed the bound. `start_only`: nothing, the bound is not enforced."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What the scheduler works with."""

    rollout: RolloutConfig
    sampling: Sampling
    seed: int
    policy: StalenessPolicy = "wait"
    max_requeues: int = 2
    try_alone: str = "rollweave env check"
    """The command that shows a failing environment or reward by itself."""

    @property
    def members(self) -> int:
        """How many members of a group are played, the redundant ones among them."""
        return self.rollout.group_size + self.rollout.redundant_members


@dataclass(slots=True, kw_only=True)
class RunningGroup(OpenGroup):
    """A group whose members are being played, with what a checkpoint does not keep of it."""

    task: Task
    members: int
    """How many are played, the redundant ones among them."""
    leases: dict[int, str] = field(default_factory=dict)
    """Member -> the attempt that is leased for it."""

    @property
    def ended(self) -> bool:
        return len(self.finished) + len(self.lost) == self.members

    @property
    def unfinished(self) -> list[int]:
        """Members that are played, or are to be played."""
        played = [*self.finished, *self.scoring.values()]
        gone = {*self.lost, *(trajectory.member for trajectory in played)}
        return [member for member in range(self.members) if member not in gone]

    def begin_again(self, version: int) -> None:
        """From the start, under a newer version; tries go on counting."""
        self.requeues += 1
        self.version = version
        self.scoring = {}
        self.finished = []
        self.lost = []
        self.leases = {}

    def whole(self) -> Group:
        return Group(self.id, self.task, self.finished)

    def state(self) -> OpenGroup:
        return OpenGroup(**_kept(self))

    @classmethod
    def from_state(cls, state: OpenGroup, task: Task, members: int) -> RunningGroup:
        return cls(**_kept(state), task=task, members=members)


def _kept(group: OpenGroup) -> dict[str, Any]:
    return {kept.name: copy(getattr(group, kept.name)) for kept in fields(OpenGroup)}


LONGEST_BACKOFF = 60.0


class Leasing:
    def __init__(
        self,
        plan: RolloutSettings,
        ledger: Ledger,
        dispatcher: Dispatcher,
        clock: Clock,
        recorder: Emitter,
        on_report: OnReport,
    ) -> None:
        self.closed = False
        self._plan = plan
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._clock = clock
        self._recorder = recorder
        self._on_report = on_report
        self._unwanted: dict[str, AttemptEnd] = {}
        """Attempts that were cancelled, until they are reported: what they end as."""

    @property
    def free(self) -> int:
        """Environments that stand idle."""
        return self._dispatcher.free

    def issue(self, group: RunningGroup, members: Iterable[int], first: bool = False) -> None:
        """Lease these members; `first`: ahead of the leases that wait for a slot."""
        leases = [self._lease(group, member) for member in members]
        for party in [[lease] for lease in leases] if self._plan.rollout.prompt_replication else [leases]:
            self._dispatcher.submit(party, self._on_report, first)

    def issue_later(self, group: RunningGroup, member: int, wanted: Callable[[], bool]) -> None:
        """After a pause that doubles with each failure and differs between members: what is down needs time."""
        failures = group.failures[member]
        spread = 0.5 + generator(self._plan.seed, "backoff", group.id, member, failures).random()
        pause = min(LONGEST_BACKOFF, self._plan.rollout.retry_backoff * 2 ** (failures - 1)) * spread
        again = partial(self._issue_again, group, member, wanted)
        self._clock.later(f"retry {group.id}.{member}", pause, again)

    def cancel(self, group: RunningGroup, cause: AttemptEnd) -> None:
        for lease in group.leases.values():
            self._unwanted[lease] = cause
            self._dispatcher.cancel(lease)

    def unwanted(self, lease: Lease) -> AttemptEnd | None:
        """What the attempt of a lease that was cancelled ends as; asked once, when it is reported."""
        return self._unwanted.pop(lease.id, None)

    def begun(self, group: RunningGroup) -> bool:
        """Whether a token of it may have been sampled."""
        return bool(group.finished or group.scoring or group.lost or group.failures) or any(
            self._dispatcher.started(lease) for lease in group.leases.values()
        )

    def _lease(self, group: RunningGroup, member: int) -> Lease:
        tries = group.tries.get(member, 0)
        group.tries[member] = tries + 1
        lease = Lease(
            id=f"{group.id}.{member}.{tries}",
            group=group.id,
            member=member,
            tries=tries,
            task=group.task,
            # Not a function of the try: an episode that is played again samples the same answers.
            seed=derive(self._plan.seed, "sample", group.id, member),
            sampling=self._plan.sampling,
            version=group.version,
        )
        self._ledger.issue(lease.id)
        group.leases[member] = lease.id
        return lease

    def _issue_again(self, group: RunningGroup, member: int, wanted: Callable[[], bool]) -> None:
        if wanted() and not self.closed:
            self._recorder.emit("member.retry", group=group.id, member=member)
            self.issue(group, [member], first=True)
