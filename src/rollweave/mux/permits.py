"""Who may use which node next: pure turn-taking, no clock, no I/O.

A job computes only with a *permit* on every node that its phase needs (a gang). Asking and granting are separate: a
request waits here until its turn has come, and whoever hands a permit back makes room for the next.

`rr`     members of a group take turns in a fixed cyclic order, the same on all nodes. A member carries a round number,
         and the smallest (round, rank) among a node's members is next, whether it is ready or not. That is what the
         planned period max(T_cycle, T_load) rests on. A group that comes from `fifo` starts its rounds anew.
`fifo`   whoever asked first is next.
tails    a rollout of which little is left may keep some of its nodes and hand back the others (`narrow`). For those its
         turn is over, and the next may begin on them. If that is a gang, it gets the rest when the tail has ended.
visits   cold starts and profiling are no phases of a cycle: they go ahead of everybody at the next free moment. A start
         that takes longer than anybody's phase keeps nobody waiting: from then on it shares its node.

No deadlock, gangs included. All nodes order their members by the same label, a permit is granted on all nodes at once
or not at all (or on some, if the rest is held by tails, which end by themselves), and a member only ever waits for
members with smaller labels: the one with the smallest waits for nobody. A permit has an epoch, one number for each
grant ever made; whoever shows an old one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rollweave.errors import RollweaveError

SharedPool = Literal["rollout", "train"]
Discipline = Literal["rr", "fifo"]
Node = str
"""`rollout-0`, `train-3`."""


class StalePermit(RollweaveError):
    """Somebody acts on a permit, or for a process, that has been replaced."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A job's place in its group: the nodes it is pinned to and when it is its turn."""

    nodes: dict[SharedPool, tuple[Node, ...]]
    rank: int
    discipline: Discipline = "rr"

    def touches(self, other: Seat) -> bool:
        return any(set(mine) & set(other.nodes[pool]) for pool, mine in self.nodes.items())


@dataclass(slots=True)
class Tenant:
    """A job in its group's cycle."""

    job: str
    seat: Seat
    round: dict[SharedPool, int]
    leaving: bool = False
    """Its last iteration: nobody waits for its next rollout."""

    def label(self, pool: SharedPool) -> tuple[int, int]:
        return self.round[pool], self.seat.rank

    def enter_lap(self, lap: int) -> None:
        """Count from this lap on. A member between its two phases has had the rollout of the lap already."""
        had_rollout = self.round["rollout"] - self.round["train"]
        self.round = {"rollout": lap + had_rollout, "train": lap}


@dataclass(slots=True)
class PermitRequest:
    job: str
    ticket: str
    """Names this one turn of this one process: asking twice with the same ticket is asking once."""
    pool: SharedPool
    nodes: tuple[Node, ...]
    number: int
    visit: bool = False
    alone_for: float | None = None
    """Seconds after which others may use its nodes too; None: they are its own."""
    partly: bool = False
    """It can begin on some of its nodes."""


@dataclass(slots=True)
class Permit:
    job: str
    ticket: str
    pool: SharedPool
    nodes: tuple[Node, ...]
    epoch: int
    since: float = 0.0
    visit: bool = False
    alone_for: float | None = None
    handed_back: tuple[Node, ...] = ()
    """Nodes it had at first."""
    owed: tuple[Node, ...] = ()
    """Nodes it gets as soon as the tail of the one before has left them."""
    waited: float = 0.0
    """Seconds that it waited for such nodes, spread over all its nodes."""

    def worked(self, now: float) -> float:
        """Seconds that the same work would have taken on all its nodes from the start."""
        all_nodes = len(self.nodes) + len(self.handed_back) + len(self.owed)
        return (now - self.since) * (1 - len(self.owed) / all_nodes) - self.waited

    def get_owed(self, free: tuple[Node, ...], now: float) -> None:
        self.waited += (now - self.since) * len(free) / (len(self.nodes) + len(self.owed))
        self.nodes += free
        self.owed = tuple(node for node in self.owed if node not in free)

    def blocks(self, now: float) -> bool:
        return self.alone_for is None or now - self.since < self.alone_for


@dataclass(slots=True)
class PermitTable:
    """The state of all queues. Plain data: it is stored as it is and loaded again."""

    members: dict[str, Tenant] = field(default_factory=dict)
    requests: dict[str, PermitRequest] = field(default_factory=dict)
    """By job: a job has one outstanding turn."""
    permits: dict[str, Permit] = field(default_factory=dict)
    epoch: int = 0
    asked: int = 0

    # ---------------------------------------------------------------------------------------------- the cycle

    def join(self, job: str, seat: Seat) -> None:
        """Enter the cycle in the round that the others are in: nobody waits for the newcomer, nor it for long."""
        self.members[job] = Tenant(job, seat, {"rollout": 0, "train": 0})
        self.members[job].enter_lap(self._present_lap(job))

    def reseat(self, seats: Mapping[str, Seat]) -> None:
        """The scheduler moved somebody or found a better order: it holds from the next turn on.

        Rounds counted under first come, first served, or in another group, say nothing about whose turn it is: a group
        that comes to round robin starts its laps anew, and a member that moves enters the present lap of its new group.
        """
        before = {job: self.members[job].seat for job in seats if job in self.members}
        for job, seat in seats.items():
            if job in self.members:
                self.members[job].seat = seat
            if job in self.requests and not self.requests[job].visit:
                self.requests[job].nodes = seat.nodes[self.requests[job].pool]
        # All members of a group train on the same nodes, and these never change.
        moved = [job for job, seat in before.items() if seat.nodes["train"] != seats[job].nodes["train"]]
        for job, seat in before.items():
            if job not in moved and (seat.discipline, seats[job].discipline) == ("fifo", "rr"):
                self.members[job].enter_lap(0)
        for number, job in enumerate(moved):
            self.members[job].enter_lap(self._present_lap(job, ignored=moved[number:]))

    def _present_lap(self, job: str, ignored: Sequence[str] = ()) -> int:
        """The latest lap that a member beside this job is in; those who have no lap there yet are ignored."""
        seat, others = self.members[job].seat, self.members.keys() - {job, *ignored}
        beside = [self.members[other] for other in others if seat.touches(self.members[other].seat)]
        return max((member.round["rollout"] for member in beside), default=0)

    def leave(self, job: str) -> None:
        """It ended, crashed or was cancelled: its nodes are free, its place in line is gone."""
        self.members.pop(job, None)
        self.requests.pop(job, None)
        self.permits.pop(job, None)

    # ----------------------------------------------------------------------------------------------- turns

    def ask(
        self,
        job: str,
        ticket: str,
        pool: SharedPool,
        nodes: tuple[Node, ...],
        visit: bool = False,
        alone_for: float | None = None,
        partly: bool = False,
    ) -> None:
        if self.holds(job, ticket) or self.waits(job, ticket):
            return
        if job in self.permits or job in self.requests:
            raise StalePermit(f"job {job} asks for a turn, but another process of it holds or awaits one already")
        self.asked += 1
        self.requests[job] = PermitRequest(job, ticket, pool, nodes, self.asked, visit, alone_for, partly)

    def give_back(self, job: str, epoch: int) -> Permit:
        permit = self.valid(job, epoch)
        del self.permits[job]
        member = self.members.get(job)
        if member is not None and not permit.visit:
            member.round[permit.pool] += 1
        return permit

    def narrow(self, job: str, epoch: int, keep: int) -> None:
        """Keep the first so many nodes of a turn, hand back the others."""
        permit = self.valid(job, epoch)
        permit.handed_back += permit.nodes[keep:]
        permit.nodes = permit.nodes[:keep]

    def awaited(self, job: str, epoch: int, keep: int, now: float = 0.0) -> bool:
        """Whether somebody waits who could begin if this turn were narrowed."""
        permit = self.valid(job, epoch)
        nodes, handed_back = permit.nodes, permit.handed_back
        self.narrow(job, epoch, keep)  # only to see
        try:
            return any(self._may_use(request, now) for request in self.requests.values() if not request.visit)
        finally:
            permit.nodes, permit.handed_back = nodes, handed_back

    def holds(self, job: str, ticket: str) -> bool:
        return job in self.permits and self.permits[job].ticket == ticket

    def waits(self, job: str, ticket: str) -> bool:
        return job in self.requests and self.requests[job].ticket == ticket

    def grant(self, now: float = 0.0) -> list[Permit]:
        """Give out every turn that has come, and what is owed to those who began on some of their nodes."""
        granted = []
        for permit in self.permits.values():
            if free := tuple(node for node in permit.owed if not self._held(node, now)):
                permit.get_owed(free, now)
                granted.append(permit)
        for request in self._in_order():
            if nodes := self._may_use(request, now):
                self.epoch += 1
                owed = tuple(node for node in request.nodes if node not in nodes)
                asked = (request.job, request.ticket, request.pool, nodes)
                permit = Permit(*asked, self.epoch, now, request.visit, request.alone_for, owed=owed)
                del self.requests[request.job]
                self.permits[request.job] = permit
                granted.append(permit)
        return granted

    def holder(self, node: Node) -> str | None:
        return next((permit.job for permit in self.permits.values() if node in permit.nodes), None)

    def line(self, node: Node) -> list[str]:
        """Who waits for a node, in the order in which they will have it."""
        return [request.job for request in self._in_order() if node in request.nodes]

    def valid(self, job: str, epoch: int) -> Permit:
        """The permit, if it is the one with this number."""
        permit = self.permits.get(job)
        if permit is None or permit.epoch != epoch:
            now = "holds none" if permit is None else f"now holds number {permit.epoch}"
            raise StalePermit(f"permit number {epoch} of job {job} is no longer valid (it {now})")
        return permit

    def _in_order(self) -> list[PermitRequest]:
        return sorted(self.requests.values(), key=self._place)

    def _place(self, request: PermitRequest) -> tuple[bool, tuple[int, int], int]:
        member = self.members.get(request.job)
        strict = member is not None and member.seat.discipline == "rr" and not request.visit
        label = member.label(request.pool) if member is not None and strict else (0, 0)
        return not request.visit, label, request.number

    def _may_use(self, request: PermitRequest, now: float) -> tuple[Node, ...]:
        """All its nodes, if its turn has come; those that a tail has left, if nothing but tails is before it."""
        if all(self._free(node, now) and self._is_next(request, node) for node in request.nodes):
            return request.nodes
        left = tuple(node for node in request.nodes if not self._in_tail(node))
        if not request.partly or len(left) == len(request.nodes):
            return ()
        ready = all(self._free(node, now) for node in left) and all(self._is_next(request, n) for n in request.nodes)
        return left if ready else ()

    def _in_tail(self, node: Node) -> bool:
        """Whether what is left of somebody's rollout runs on it, and nobody is to have it next yet."""
        held = any(node in permit.nodes and permit.handed_back for permit in self.permits.values())
        return held and not any(node in permit.owed for permit in self.permits.values())

    def _free(self, node: Node, now: float) -> bool:
        return not self._held(node, now) and not any(node in permit.owed for permit in self.permits.values())

    def _held(self, node: Node, now: float) -> bool:
        return any(node in permit.nodes and permit.blocks(now) for permit in self.permits.values())

    def _is_next(self, request: PermitRequest, node: Node) -> bool:
        ahead = [other for other in self._rivals(request, node) if self._place(other) < self._place(request)]
        member = self.members.get(request.job)
        if request.visit or member is None or member.seat.discipline == "fifo":
            return not ahead
        mine = member.label(request.pool)
        return not any(other.visit for other in ahead) and all(
            mine <= other.label(request.pool) or self._is_over(other, node)
            for other in self._pinned(node, request.pool)
        )

    def _is_over(self, member: Tenant, node: Node) -> bool:
        """Its turn on this node, or all but its tail."""
        permit = self.permits.get(member.job)
        return permit is not None and bool(permit.handed_back) and node in permit.nodes + permit.handed_back

    def _rivals(self, request: PermitRequest, node: Node) -> Iterator[PermitRequest]:
        return (other for other in self.requests.values() if other is not request and node in other.nodes)

    def _pinned(self, node: Node, pool: SharedPool) -> Iterable[Tenant]:
        """Those whose turn on a node is waited for."""
        return (
            member
            for member in self.members.values()
            if node in member.seat.nodes[pool] and not (member.leaving and pool == "rollout")
        )
