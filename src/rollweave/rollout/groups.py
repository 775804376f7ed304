"""RunningGroup: a group whose members are being played, and the leases that are out for it.

Leasing: from a group's member to a lease that is out, again after a failure, and back when it is not wanted.

What a report means for its group is the scheduler's business; here is only who is being played for whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from rollweave.clock import Clock
from rollweave.engines.protocol import Sampling
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.ledger import AttemptEnd, Ledger
from rollweave.rollout.link import Lease, Report
from rollweave.rollout.state import OpenGroup
from rollweave.seeds import derive, generator
from rollweave.tasks import Task
from rollweave.trajectory import Group, Trajectory


@dataclass(slots=True)
class RunningGroup:
    id: int
    task: Task
    version: int
    """What its staleness counts from: the engines' version at admission, renewed until the first lease is out."""
    members: int
    """How many are played, the redundant ones among them."""
    requeues: int = 0
    leases: dict[int, str] = field(default_factory=dict)
    """Member -> the lease that is out for it."""
    tries: dict[int, int] = field(default_factory=dict)
    """Leases issued so far, by member."""
    failures: dict[int, int] = field(default_factory=dict)
    scoring: dict[str, Trajectory] = field(default_factory=dict)
    """Attempt -> its trajectory: played to the end, but its reward is not there yet."""
    finished: list[Trajectory] = field(default_factory=list)
    """Played to the end and scored."""
    lost: set[int] = field(default_factory=set)
    """Members that have ended for good without a trajectory."""

    @property
    def ended(self) -> bool:
        return len(self.finished) + len(self.lost) == self.members

    @property
    def unfinished(self) -> list[int]:
        """Members that are played, or are to be played."""
        played = [*self.finished, *self.scoring.values()]
        gone = self.lost.union(trajectory.member for trajectory in played)
        return [member for member in range(self.members) if member not in gone]

    def begin_again(self, version: int) -> None:
        """From the start, under a newer version; tries go on counting."""
        self.requeues += 1
        self.version = version
        self.scoring = {}
        self.finished = []
        self.lost = set()
        self.leases = {}

    def whole(self) -> Group:
        return Group(self.id, self.task, self.finished)

    def state(self) -> OpenGroup:
        return OpenGroup(
            self.id,
            self.version,
            self.requeues,
            dict(self.tries),
            dict(self.failures),
            list(self.finished),
            sorted(self.lost),
            list(self.scoring.values()),
        )

    @classmethod
    def from_state(cls, state: OpenGroup, task: Task, members: int) -> RunningGroup:
        return cls(
            state.id,
            task,
            state.version,
            members,
            state.requeues,
            tries=dict(state.tries),
            failures=dict(state.failures),
            scoring={trajectory.id: trajectory for trajectory in state.scoring},
            finished=list(state.finished),
            lost=set(state.lost),
        )


LONGEST_BACKOFF = 60.0

Heard = Callable[[Lease, Report], None]


class Leasing:
    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        recorder: Emitter,
        heard: Heard,
        *,
        sampling: Sampling,
        seed: int,
        retry_backoff: float,
        one_by_one: bool,
    ) -> None:
        self.closed = False
        self._dispatcher = dispatcher
        self._clock = clock
        self._recorder = recorder
        self._heard = heard
        self._sampling = sampling
        self._seed = seed
        self._retry_backoff = retry_backoff
        self._one_by_one = one_by_one
        """Each member of a group to whichever host is free, or all of them to one."""
        self._unwanted: dict[str, AttemptEnd] = {}
        """Leases we no longer want, until they are reported: what their attempts end as."""

    @property
    def free(self) -> int:
        """Environments that stand idle."""
        return self._dispatcher.free

    def issue(self, ledger: Ledger, group: RunningGroup, members: Iterable[int], first: bool = False) -> None:
        leases = [self._lease(ledger, group, member) for member in members]
        for party in [[lease] for lease in leases] if self._one_by_one else [leases]:
            self._dispatcher.submit(party, self._heard, first)

    def issue_later(self, ledger: Ledger, group: RunningGroup, member: int, wanted: Callable[[], bool]) -> None:
        """After a pause that doubles with each failure, and differs between members: what is down needs peace."""
        failures = group.failures[member]
        spread = 0.5 + generator(self._seed, "backoff", group.id, member, failures).random()
        pause = min(LONGEST_BACKOFF, self._retry_backoff * 2 ** (failures - 1)) * spread
        again = partial(self._issue_again, ledger, group, member, wanted)
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

    def _lease(self, ledger: Ledger, group: RunningGroup, member: int) -> Lease:
        tries = group.tries.get(member, 0)
        group.tries[member] = tries + 1
        lease = Lease(
            id=f"{group.id}.{member}.{tries}",
            group=group.id,
            member=member,
            tries=tries,
            task=group.task,
            # Not a function of the try: an episode that is played again samples the same answers.
            seed=derive(self._seed, "sample", group.id, member),
            sampling=self._sampling,
            version=group.version,
        )
        ledger.issue(lease.id)
        group.leases[member] = lease.id
        return lease

    def _issue_again(self, ledger: Ledger, group: RunningGroup, member: int, wanted: Callable[[], bool]) -> None:
        if wanted() and not self.closed:
            self._recorder.emit("member.retry", group=group.id, member=member)
            self.issue(ledger, group, [member], first=True)
