"""Groups that are being played, and the leases of their members.

RunningGroup holds what is known of a group. Leasing issues leases for its members, and cancels those that are not
wanted any more. What a report means for its group, the scheduler decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rollweave.config.control import RolloutConfig
from rollweave.engines.protocol import Sampling
from rollweave.rollout.dispatcher import Dispatcher, OnReport
from rollweave.rollout.ledger import AttemptEnd, Ledger
from rollweave.rollout.link import Lease
from rollweave.rollout.state import OpenGroup
from rollweave.seeds import derive, generator
from rollweave.tasks import Task
from rollweave.versions import marked

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

    def state(self) -> OpenGroup:
        return OpenGroup(**_kept(self))

    @classmethod
    def from_state(cls, state: OpenGroup, task: Task, members: int) -> RunningGroup:
        return cls(**_kept(state), task=task, members=members)


def _kept(group: OpenGroup) -> dict[str, Any]:
    return {kept.name: copy(getattr(group, kept.name)) for kept in fields(OpenGroup)}


LONGEST_BACKOFF = 60.0


@dataclass(slots=True)
class Leasing:
    settings: RolloutSettings
    ledger: Ledger
    dispatcher: Dispatcher
    on_report: OnReport
    unwanted: dict[str, AttemptEnd] = field(default_factory=dict)
    """Attempts that were cancelled, until they are reported: what they end as."""
    history: int = 0
    """Of the run: the attempts of an abandoned one are not to be taken for those that are made now."""

    def issue(self, group: RunningGroup, members: Iterable[int], first: bool = False) -> None:
        """Lease these members; `first`: ahead of the leases that wait for a slot."""
        leases = [self._lease(group, member) for member in members]
        for party in [[lease] for lease in leases] if self.settings.rollout.prompt_replication else [leases]:
            self.dispatcher.submit(party, self.on_report, first)

    def pause(self, group: RunningGroup, member: int) -> float:
        """Seconds before a member is tried again: doubles with each failure and differs between members, because what
        is down needs time."""
        failures = group.failures[member]
        spread = 0.5 + generator(self.settings.seed, "backoff", group.id, member, failures).random()
        return min(LONGEST_BACKOFF, self.settings.rollout.retry_backoff * 2.0 ** (failures - 1)) * spread

    def cancel(self, group: RunningGroup, cause: AttemptEnd) -> None:
        for lease in group.leases.values():
            self.unwanted[lease] = cause
            self.dispatcher.cancel(lease)

    def begun(self, group: RunningGroup) -> bool:
        """Whether a token of it may have been sampled."""
        return bool(group.finished or group.scoring or group.lost or group.failures) or any(
            self.dispatcher.player(lease) for lease in group.leases.values()
        )

    def _lease(self, group: RunningGroup, member: int) -> Lease:
        tries = group.tries.get(member, 0)
        group.tries[member] = tries + 1
        lease = Lease(
            id=marked(f"{group.id}.{member}.{tries}", self.history),
            group=group.id,
            member=member,
            tries=tries,
            task=group.task,
            # Not a function of the try: an episode that is played again samples the same answers.
            seed=derive(self.settings.seed, "sample", group.id, member),
            sampling=self.settings.sampling,
            version=group.version,
        )
        self.ledger.issue(lease.id)
        group.leases[member] = lease.id
        return lease
