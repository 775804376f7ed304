"""Dispatcher: hands leases to hosts that have room, and brings each report back once, to the part that submitted it.

It chooses the engine of each lease when a host gets it, and tells the hosts when the fleet changes.

Leases that were submitted together start together, on one host, and give their room back together. The scheduler
submits them one by one, unless the members of a group are to share an engine.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rollweave.clock import Waiting
from rollweave.config.control import RolloutConfig
from rollweave.fleet.affinity import Affinity
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.fleet.router import Route, RouteAsk, choose
from rollweave.observability.events import Emitter, Recorder
from rollweave.rewards.dispatch import Scored
from rollweave.rollout.link import (
    Cancel,
    Endpoint,
    HostLink,
    LateAnswers,
    Lease,
    Moved,
    Report,
    ToDriver,
    ToHost,
    Transport,
)
from rollweave.trajectory import Outcome, Trajectory

OnReport = Callable[[Lease, Report], None]


async def _no_other_process() -> list[Waiting]:
    return []


@dataclass(slots=True)
class _Seat:
    """A host as the dispatcher sees it."""

    capacity: int
    number: int
    link: HostLink = field(init=False)
    used: int = 0
    playing: dict[str, Lease] = field(default_factory=dict)

    @property
    def room(self) -> int:
        return self.capacity - self.used


@dataclass(slots=True, eq=False)
class _Party:
    """Leases that are played together."""

    leases: dict[str, Lease]
    """Those that are not reported, by id."""
    on_report: OnReport
    size: int
    """Places that it takes until all are reported."""
    seat: _Seat | None = None


class Dispatcher:
    def __init__(
        self, fleet: Fleet | None = None, scheduling: Literal["queue", "batch"] = "queue", together: bool = False
    ) -> None:
        """`together`: the members of a group share an engine."""
        self._fleet = fleet if fleet is not None else Fleet()
        self._fleet.on_change.append(self._tell_hosts)
        self._together = together
        self.limit: int | None = None
        """The most episodes to play at once over all hosts; None: as many as they have room for."""
        self._recorder: Emitter = Recorder(lambda: 0.0)
        self.on_scored: Callable[[Scored], None] = lambda answer: None
        """Hears the rewards that hosts have computed, each after the report of its episode."""
        self.on_hosts: Callable[[], None] = lambda: None
        """Hears that a host was attached or detached."""
        self.ask_waits: Callable[[], Awaitable[list[Waiting]]] = _no_other_process
        """Asks what is waited for in hosts of other processes, which have clocks of their own; set by their runtime."""
        self._scheduling = scheduling
        self._seats: dict[int, _Seat] = {}
        """By the numbers of their hosts, in order of attaching."""
        self._numbers = itertools.count()
        self._queue: deque[_Party] = deque()
        self._parties: dict[str, _Party] = {}
        """Of each lease that is not reported."""
        self._early: dict[str, Scored] = {}
        """Rewards that have overtaken their report."""

    def listen(self, recorder: Emitter) -> None:
        """From now on hosts and episodes are events; first the hosts that are there."""
        self._recorder = recorder
        for seat in self._seats.values():
            recorder.emit("host.attach", host=seat.number, capacity=seat.capacity)

    # ------------------------------------------------------------------------------------------------- hosts

    @classmethod
    def of(cls, rollout: RolloutConfig, fleet: Fleet) -> Dispatcher:
        fleet.affinity = Affinity() if rollout.affinity == "auto" else None
        return cls(fleet, rollout.scheduling, together=not rollout.prompt_replication)

    def attach(self, transport: Transport, capacity: int, revision: int | None = None) -> HostLink:
        """A new host that can play `capacity` episodes at once; returns the driver's end of the link to it. `revision`:
        of the fleet that the host knows, if that is not the present one."""
        seat = _Seat(capacity, next(self._numbers))
        seat.link = Endpoint(transport, lambda message: self._hear(seat, message))
        self._seats[seat.number] = seat
        if revision not in (None, self._fleet.revision):
            self._tell_of_fleet(seat)
        self._recorder.emit("host.attach", host=seat.number, capacity=capacity)
        self._fill()
        self.on_hosts()
        return seat.link

    def detach(self, link: HostLink) -> None:
        """A host is dead: what it played is reported as lost with it."""
        seat = next(seat for seat in self._seats.values() if seat.link is link)
        del self._seats[seat.number]
        link.close()
        self._recorder.emit("host.detach", host=seat.number)
        lost = list(seat.playing.values())
        for lease in lost:
            self._end(_unplayed(lease, "its host died", host_died=True))
        self._fill()
        for lease in lost:
            self._pass_on_reward(lease.id)
        self.on_hosts()

    @property
    def hosts(self) -> list[int]:
        """The numbers of the hosts that are there, in order of attaching."""
        return list(self._seats)

    def say(self, host: int, id: str, message: ToHost) -> None:
        """Send a host a message that is not a lease. A host that is gone gets nothing."""
        if host in self._seats:
            self._seats[host].link.say(id, message)

    # ------------------------------------------------------------------------------------------------ leases

    def submit(self, leases: Sequence[Lease], on_report: OnReport, first: bool = False) -> None:
        """Queue leases that start together; `first` puts them at the head of the line (evaluations, retries)."""
        party = _Party({lease.id: lease for lease in leases}, on_report, len(leases))
        self._parties |= dict.fromkeys(party.leases, party)
        if first:
            self._queue.appendleft(party)
        else:
            self._queue.append(party)
        self._fill()

    def cancel(self, id: str) -> None:
        """Stop a lease. It is reported all the same, at once if no host has begun to play it."""
        party = self._parties.get(id)
        if party is None:
            return
        if party.seat is not None:
            party.seat.link.say(f"cancel.{id}", Cancel(id))
            return
        party.size -= 1
        if not party.size:
            self._queue.remove(party)
        self._end(_unplayed(party.leases[id], "cancelled before it began"))

    def player(self, id: str) -> tuple[Lease, HostLink] | None:
        """The lease of this id and the link to the host that plays it, if one does."""
        party = self._parties.get(id)
        return None if party is None or party.seat is None else (party.leases[id], party.seat.link)

    @property
    def playing(self) -> int:
        return sum(len(seat.playing) for seat in self._seats.values())

    @property
    def capacity(self) -> int:
        """Episodes that may be played at once."""
        room = sum(seat.capacity for seat in self._seats.values())
        return room if self.limit is None else min(room, self.limit)

    @property
    def free(self) -> int:
        """Episodes that could begin at once."""
        return 0 if self._queue else self.capacity - sum(seat.used for seat in self._seats.values())

    def _fill(self) -> None:
        if self._scheduling == "batch" and any(seat.used for seat in self._seats.values()):
            return
        used = sum(seat.used for seat in self._seats.values())
        while self._queue and self._seats:
            party = self._queue[0]
            seat = max(self._seats.values(), key=lambda seat: seat.room)
            # One that is larger than any host starts when a host is empty.
            room = min(seat.room, self.capacity - used)
            if room <= 0 or (room < party.size and seat.used):
                return
            self._queue.popleft()
            used += party.size
            self._seat(party, seat)

    def _seat(self, party: _Party, seat: _Seat) -> None:
        party.seat = seat
        seat.used += party.size
        for lease in party.leases.values():
            seat.playing[lease.id] = lease
            self._tell("episode.begin", lease)
            ask = RouteAsk(lease.id, lease.task.environment, lease.group if self._together else None)
            route = choose(ask, self._fleet.view)
            if route is not None:
                lease.engine, lease.prefill = route.engine, route.prefill
                self._place(lease, route)
            seat.link.say(lease.id, lease)

    def _place(self, lease: Lease, route: Route) -> None:
        engine, reason, inputs, prefill, expected = route
        attempt, task = lease.id, lease.task.environment
        self._fleet.place(attempt, engine, prefill, task, expected)
        if prefill is not None:
            inputs = {"prefill": prefill, **inputs}
        pool = self._fleet.pool_of(engine)
        self._recorder.emit("route", attempt=attempt, task=task, engine=engine, pool=pool, reason=reason, **inputs)

    def _tell_hosts(self, changed: EngineEntry) -> None:
        for seat in self._seats.values():
            self._tell_of_fleet(seat)

    def _tell_of_fleet(self, seat: _Seat) -> None:
        update = self._fleet.update()
        seat.link.say(f"fleet.{update.revision}", update)

    def _hear(self, seat: _Seat, message: ToDriver) -> None:
        if isinstance(message, Scored):
            if message.attempt in self._parties:
                self._early[message.attempt] = message
            else:
                self.on_scored(message)
        elif isinstance(message, LateAnswers):
            self._recorder.emit("engine.refused", engine=message.engine, answers=message.answers)
        elif message.attempt not in seat.playing:
            pass  # said by a host after it was taken for dead
        elif isinstance(message, Moved):
            lease = seat.playing[message.attempt]
            if message.number > lease.moved:
                lease.moved = message.number
                self._place(lease, message.route)
        else:
            message.host = seat.number
            if message.moved is not None:
                self._hear(seat, message.moved)
            self._end(message)
            self._fill()
            self._pass_on_reward(message.attempt)

    def _end(self, report: Report) -> None:
        party = self._parties.pop(report.attempt)
        lease = party.leases.pop(report.attempt)
        if party.seat is not None:
            del party.seat.playing[report.attempt]
            if not party.leases:
                party.seat.used -= party.size
            outcome = report.trajectory.outcome
            if (
                lease.group >= 0 and outcome is not None and outcome.trainable
            ):  # evaluations are greedy, others cut short
                self._fleet.learn_from(report.trajectory)
            self._fleet.leave(lease.id)
            self._tell("episode.end", lease)
        party.on_report(lease, report)

    def _pass_on_reward(self, attempt: str) -> None:
        """If a reward has overtaken its report. The slot has been filled by then, as when the reward comes later."""
        if (scored := self._early.pop(attempt, None)) is not None:
            self.on_scored(scored)

    def _tell(self, event: str, lease: Lease) -> None:
        slots, used = self.capacity, sum(seat.used for seat in self._seats.values())
        free = max(0, slots - used)
        self._recorder.emit(event, id=lease.id, group=lease.group, free=free, slots=slots, in_line=len(self._queue))


def _unplayed(lease: Lease, cause: str, host_died: bool = False) -> Report:
    trajectory = Trajectory(lease.id, lease.group, lease.member, lease.task, admitted_version=lease.version)
    trajectory.outcome = Outcome.ENV_FAILED if host_died else Outcome.ABORTED
    trajectory.cause = cause
    return Report(lease.id, trajectory, host_died=host_died)
