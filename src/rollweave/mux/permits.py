"""Says which job may use which node next. Pure rules: no clock, no I/O.

A job computes only with a *permit* on every node that its phase needs (a gang). Asking and granting are separate: a
request waits in the `PermitTable` until the rules allow it, and a permit that is handed back makes room for the next
one. The daemon drives the table with real processes, the phase-by-phase replay (mux/simulation/phases.py) with
simulated time; no other code decides which job is next.

`rr`     The jobs of a co-group use its nodes in a fixed cyclic order, the same on all nodes. Once through the order
         is a *lap*. Every job counts its laps in each pool; the smallest (lap, rank) among the jobs of a node is next,
         also if it is not ready yet: the planned period max(T_cycle, T_load) depends on that. A group that comes from
         `fifo` counts its laps anew. No job waits for the next rollout of a job that is in its last iteration.
`fifo`   The request that was made first is next.
joins    A job that enters a group, as new or from another group, takes its place in the latest lap in which a job of
         the group rolls out or will do so next; the scheduler gives it the last rank. So it joins at the tail of that
         lap: no job of the group waits for it before it has rolled out in that lap itself.
tails    A rollout of which little is left may keep some of its nodes and hand back the others (`narrow`). On those its
         phase counts as over, and the next job may begin there. If that job is a gang, it gets its other nodes when the
         tail has ended.
visits   Cold starts and profiling are no phases of a lap: they go ahead of all phases as soon as their nodes are free.
         A start that takes longer than the longest phase shares its nodes from then on, so that no phase waits longer.

There is no deadlock, with gangs either. All nodes order their jobs by the same label; a permit is granted on all nodes
at once or not at all (or on some, if tails, which end by themselves, hold the rest); and a job waits only for jobs with
smaller labels, so the job with the smallest label waits for none. A permit carries an epoch, a number that grows with
each grant; a caller that shows an old one is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rollweave.errors import RollweaveError
from rollweave.pipelines.permits import SharedPool

Discipline = Literal["rr", "fifo"]
Node = str
"""`rollout-0`, `train-3`."""


class StalePermit(RollweaveError):
    """A process acts on a permit that has been replaced, or for a job that another process runs now."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A job's place in its co-group: the nodes that it is pinned to, and its place in the order."""

    nodes: dict[SharedPool, tuple[Node, ...]]
    rank: int
    discipline: Discipline = "rr"

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        return self.nodes["rollout"] + self.nodes["train"]


@dataclass(slots=True)
class Tenant:
    """A job that takes part in the laps of its co-group."""

    job: str
    seat: Seat
    lap: dict[SharedPool, int]
    """The lap of its next phase in each pool, or of the phase that runs there."""
    leaving: bool = False
    """It is in its last iteration: no job waits for its next rollout."""

    def label(self, pool: SharedPool) -> tuple[int, int]:
        return self.lap[pool], self.seat.rank

    def enter_lap(self, lap: int) -> None:
        """Count from this lap on. A job between its two phases has had the rollout of the lap already."""
        had_rollout = self.lap["rollout"] - self.lap["train"]
        self.lap = {"rollout": lap + had_rollout, "train": lap}


@dataclass(slots=True)
class PermitRequest:
    job: str
    ticket: str
    """Names this one request of this one process: asking twice with the same ticket is asking once."""
    pool: SharedPool
    nodes: tuple[Node, ...]
    number: int
    visit: bool = False
    alone_for: float | None = None
    """Seconds after which other jobs may use its nodes too; None: never."""
    partly: bool = False
    """It can begin on some of its nodes."""


@dataclass(slots=True)
class Permit:
    """Leave to use nodes of one pool for one phase (or one visit)."""

    job: str
    ticket: str
    pool: SharedPool
    nodes: tuple[Node, ...]
    epoch: int
    since: float = 0.0
    visit: bool = False
    alone_for: float | None = None
    handed_back: tuple[Node, ...] = ()
    """Nodes that it had at first."""
    owed: tuple[Node, ...] = ()
    """Nodes that it gets as soon as the tail of the job before it has left them."""
    waited: float = 0.0
    """Seconds that it waited for such nodes, spread over all its nodes."""

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        return self.nodes + self.handed_back + self.owed

    def worked(self, now: float) -> float:
        """Seconds that the same work would have taken on all its nodes from the start."""
        return (now - self.since) * (1 - len(self.owed) / len(self.all_nodes)) - self.waited

    def get_owed(self, free: tuple[Node, ...], now: float) -> None:
        self.waited += (now - self.since) * len(free) / (len(self.nodes) + len(self.owed))
        self.nodes += free
        self.owed = tuple(node for node in self.owed if node not in free)

    def blocks(self, now: float) -> bool:
        """Whether no other job may use its nodes."""
        return self.alone_for is None or now - self.since < self.alone_for


@dataclass(slots=True)
class NodeUse:
    """The tenants, requests and permits that concern one node, by job."""

    tenants: dict[str, Tenant] = field(default_factory=dict)
    requests: dict[str, PermitRequest] = field(default_factory=dict)
    permits: dict[str, Permit] = field(default_factory=dict)
    """Also those to which the node is owed, or that have handed it back."""


@dataclass(slots=True)
class PermitTable:
    """The requests and permits of all jobs. The public fields are plain data: they are stored and loaded as they are.

    `_on` finds by node what a decision about that node needs, and `_changed` holds the nodes about which a decision may
    have changed since the last `grant`: so a grant looks at a few jobs of one co-group, not at all jobs.
    """

    tenants: dict[str, Tenant] = field(default_factory=dict)
    requests: dict[str, PermitRequest] = field(default_factory=dict)
    """By job: a job has one outstanding request."""
    permits: dict[str, Permit] = field(default_factory=dict)
    epoch: int = 0
    asked: int = 0
    _on: defaultdict[Node, NodeUse] = field(init=False, repr=False, compare=False)
    _changed: set[Node] = field(init=False, repr=False, compare=False)
    _starts: dict[str, Permit] = field(init=False, repr=False, compare=False)
    """Permits whose nodes others may use after some time: there a decision may change at any time."""
    _owing: dict[str, Permit] = field(init=False, repr=False, compare=False)
    """Permits to which nodes are owed."""

    def __post_init__(self) -> None:
        self._on, self._changed, self._starts, self._owing = defaultdict(NodeUse), set(), {}, {}
        for tenant in self.tenants.values():
            self._index_tenant(tenant)
        for request in self.requests.values():
            self._index_request(request)
        for permit in self.permits.values():
            self._index_permit(permit)

    # ------------------------------------------------------------------------------------------------- the laps

    def join(self, job: str, seat: Seat) -> None:
        """Enter the latest lap in which a job of the group rolls out or will do so next."""
        tenant = self.tenants[job] = Tenant(job, seat, {"rollout": 0, "train": 0})
        self._index_tenant(tenant)
        tenant.enter_lap(self._present_lap(job))

    def reseat(self, seats: Mapping[str, Seat]) -> None:
        """The scheduler moved jobs or found a better order: it holds from their next permits on.

        Laps counted under first come, first served, or in another group, say nothing about which job is next: a group
        that comes to round robin counts its laps anew, and a job that moves enters the present lap of its new group.
        """
        before: dict[str, Seat] = {}
        for job, seat in seats.items():
            tenant = self.tenants.get(job)
            if tenant is not None and seat != tenant.seat:
                before[job] = tenant.seat
                self._move_tenant(tenant, seat)
        # All members of a group train on the same nodes, and these never change.
        moved = [job for job, seat in before.items() if seat.nodes["train"] != seats[job].nodes["train"]]
        for job, seat in before.items():
            if job not in moved and (seat.discipline, seats[job].discipline) == ("fifo", "rr"):
                self.tenants[job].enter_lap(0)
        for number, job in enumerate(moved):
            self.tenants[job].enter_lap(self._present_lap(job, ignored=moved[number:]))

    def _move_tenant(self, tenant: Tenant, seat: Seat) -> None:
        self._forget_tenant(tenant)
        tenant.seat = seat
        self._index_tenant(tenant)
        request = self.requests.get(tenant.job)
        if request is not None and not request.visit:
            self._forget_request(request)
            request.nodes = seat.nodes[request.pool]
            self._index_request(request)

    def _present_lap(self, job: str, ignored: Sequence[str] = ()) -> int:
        """The latest lap that a job beside this one rolls out in; jobs that have no lap there yet are ignored."""
        beside = [tenant for node in self.tenants[job].seat.all_nodes for tenant in self._on[node].tenants.values()]
        return max((other.lap["rollout"] for other in beside if other.job not in (job, *ignored)), default=0)

    def leave_after_this_lap(self, job: str) -> None:
        """The job is in its last iteration."""
        tenant = self.tenants[job]
        tenant.leaving = True
        self._changed.update(tenant.seat.nodes["rollout"])

    def leave(self, job: str) -> None:
        """The job ended, crashed or was cancelled: its nodes are free, its request is gone."""
        if (tenant := self.tenants.pop(job, None)) is not None:
            self._forget_tenant(tenant)
        if (request := self.requests.pop(job, None)) is not None:
            self._forget_request(request)
        if (permit := self.permits.pop(job, None)) is not None:
            self._forget_permit(permit)

    # ---------------------------------------------------------------------------------------------- permits

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
        known = self.ticket(job)
        if known == ticket:
            return
        if known is not None:
            raise StalePermit(f"job {job} asks for a permit, but another process of it holds or awaits one already")
        self.asked += 1
        request = PermitRequest(job, ticket, pool, nodes, self.asked, visit, alone_for, partly)
        self.requests[job] = request
        self._index_request(request)

    def give_back(self, job: str, epoch: int) -> Permit:
        permit = self.check(job, epoch)
        del self.permits[job]
        self._forget_permit(permit)
        tenant = self.tenants.get(job)
        if tenant is not None and not permit.visit:
            tenant.lap[permit.pool] += 1
            self._changed.update(tenant.seat.nodes[permit.pool])
        return permit

    def narrow(self, job: str, epoch: int, keep: int) -> None:
        """Keep the first `keep` nodes of a permit, hand back the others."""
        permit = self.check(job, epoch)
        self._changed.update(permit.nodes)
        permit.handed_back += permit.nodes[keep:]
        permit.nodes = permit.nodes[:keep]

    def is_awaited(self, job: str, epoch: int, keep: int, now: float = 0.0) -> bool:
        """Whether a job waits that could begin if this permit were narrowed."""
        permit = self.check(job, epoch)
        nodes, handed_back = permit.nodes, permit.handed_back
        permit.handed_back, permit.nodes = handed_back + nodes[keep:], nodes[:keep]  # only to see
        try:
            return any(self._usable_nodes(ask, now) for ask in self._requests_on(nodes) if not ask.visit)
        finally:
            permit.nodes, permit.handed_back = nodes, handed_back

    def ticket(self, job: str) -> str | None:
        """The ticket of the job's permit or request; a job never has both."""
        found = self.permits.get(job) or self.requests.get(job)
        return found.ticket if found is not None else None

    def grant(self, now: float = 0.0) -> list[Permit]:
        """Give out every permit that the rules allow now, and the nodes that are owed and free."""
        granted = self._give_owed(now) if self._owing else []
        for permit in self._starts.values():
            self._changed.update(permit.nodes)
        requests = self._requests_on(self._changed)
        self._changed.clear()
        for request in self._in_order(requests):
            if usable := self._usable_nodes(request, now):
                granted.append(self._make_permit(request, usable, now))
        return granted

    def _give_owed(self, now: float) -> list[Permit]:
        granted = []
        for permit in self._owing.values():
            if free := tuple(node for node in permit.owed if not self._is_held(node, now)):
                permit.get_owed(free, now)
                granted.append(permit)
        self._owing = {job: permit for job, permit in self._owing.items() if permit.owed}
        return granted

    def _make_permit(self, ask: PermitRequest, usable: tuple[Node, ...], now: float) -> Permit:
        self.epoch += 1
        del self.requests[ask.job]
        for node in ask.nodes:
            del self._on[node].requests[ask.job]
        owed = tuple(node for node in ask.nodes if node not in usable)
        permit = Permit(ask.job, ask.ticket, ask.pool, usable, self.epoch, now, ask.visit, ask.alone_for, owed=owed)
        self.permits[ask.job] = permit
        self._index_permit(permit)
        return permit

    def holder(self, node: Node) -> str | None:
        return next((permit.job for permit in self._on[node].permits.values() if node in permit.nodes), None)

    def line(self, node: Node) -> list[str]:
        """The jobs that wait for a node, in the order in which they will have it."""
        return [request.job for request in self._in_order(self._requests_on([node]))]

    def check(self, job: str, epoch: int) -> Permit:
        """The job's permit; refused if that is not the one with this epoch."""
        permit = self.permits.get(job)
        if permit is None or permit.epoch != epoch:
            now = "holds none" if permit is None else f"now holds number {permit.epoch}"
            raise StalePermit(f"permit number {epoch} of job {job} is no longer valid (it {now})")
        return permit

    # ------------------------------------------------------------------------------------------------ the rules

    def _in_order(self, requests: Collection[PermitRequest]) -> Collection[PermitRequest]:
        return sorted(requests, key=self._place) if len(requests) > 1 else requests

    def _place(self, request: PermitRequest) -> tuple[bool, tuple[int, int], int]:
        tenant = self.tenants.get(request.job)
        strict = tenant is not None and tenant.seat.discipline == "rr" and not request.visit
        label = tenant.label(request.pool) if tenant is not None and strict else (0, 0)
        return not request.visit, label, request.number

    def _usable_nodes(self, request: PermitRequest, now: float) -> tuple[Node, ...]:
        """The nodes on which it may begin now, if it is next on all its nodes: those that no tail uses."""
        nodes = request.nodes
        if request.partly:
            nodes = tuple(node for node in nodes if not self._is_in_tail(node))
        return nodes if self._are_free(nodes, now) and self._is_next(request) else ()

    def _is_in_tail(self, node: Node) -> bool:
        """Whether the rest of a rollout runs on it, and it is owed to no job yet."""
        permits = self._on[node].permits.values()
        held = any(node in permit.nodes and permit.handed_back for permit in permits)
        return held and not any(node in permit.owed for permit in permits)

    def _are_free(self, nodes: tuple[Node, ...], now: float) -> bool:
        """Whether no permit blocks one of them and none is owed to a job."""
        for node in nodes:
            for permit in self._on[node].permits.values():
                if node in permit.owed or (node in permit.nodes and permit.blocks(now)):
                    return False
        return True

    def _is_held(self, node: Node, now: float) -> bool:
        return any(node in permit.nodes and permit.blocks(now) for permit in self._on[node].permits.values())

    def _is_next(self, request: PermitRequest) -> bool:
        """Whether it comes before all other jobs on all its nodes, as far as they use them in the same pool."""
        tenant, uses = self.tenants.get(request.job), [self._on[node] for node in request.nodes]
        if request.visit or tenant is None or tenant.seat.discipline == "fifo":
            mine = self._place(request)
            return all(other is request or mine < self._place(other) for use in uses for other in use.requests.values())
        pool, label = request.pool, tenant.label(request.pool)
        for node, use in zip(request.nodes, uses, strict=True):
            if len(use.requests) > 1 and any(other.visit for other in use.requests.values()):
                return False
            for other in use.tenants.values():
                if (other.lap[pool], other.seat.rank) < label and not self._is_past(other, pool, node):
                    return False
        return True

    def _is_past(self, tenant: Tenant, pool: SharedPool, node: Node) -> bool:
        """Whether no job waits for it here: it rolls out no more, or only the tail of its rollout is left."""
        if tenant.leaving and pool == "rollout":
            return True
        permit = self.permits.get(tenant.job)
        return permit is not None and bool(permit.handed_back) and node in permit.nodes + permit.handed_back

    # ------------------------------------------------------------------------------------------------ the index

    def _requests_on(self, nodes: Iterable[Node]) -> Collection[PermitRequest]:
        requests: dict[str, PermitRequest] = {}
        for node in nodes:
            requests.update(self._on[node].requests)
        return requests.values()

    def _index_tenant(self, tenant: Tenant) -> None:
        nodes = tenant.seat.all_nodes
        for node in nodes:
            self._on[node].tenants[tenant.job] = tenant
        self._changed.update(nodes)

    def _forget_tenant(self, tenant: Tenant) -> None:
        nodes = tenant.seat.all_nodes
        for node in nodes:
            del self._on[node].tenants[tenant.job]
        self._changed.update(nodes)

    def _index_request(self, request: PermitRequest) -> None:
        for node in request.nodes:
            self._on[node].requests[request.job] = request
        self._changed.add(request.nodes[0])  # one is enough to find it, and it makes no other request possible

    def _forget_request(self, request: PermitRequest) -> None:
        for node in request.nodes:
            del self._on[node].requests[request.job]
        self._changed.update(request.nodes)

    def _index_permit(self, permit: Permit) -> None:
        for node in permit.all_nodes:
            self._on[node].permits[permit.job] = permit
        if permit.alone_for is not None:
            self._starts[permit.job] = permit
        if permit.owed:
            self._owing[permit.job] = permit

    def _forget_permit(self, permit: Permit) -> None:
        nodes = permit.all_nodes
        for node in nodes:
            del self._on[node].permits[permit.job]
        self._changed.update(nodes)
        self._starts.pop(permit.job, None)
        self._owing.pop(permit.job, None)
