"""Dispatcher: hands leases to hosts that have room and brings each report back to whoever asked, once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rollweave.rollout.link import Endpoint, Transport
from rollweave.rollout.messages import Lease, Report

OnReport = Callable[[Lease, Report], None]


@dataclass(slots=True)
class _HostSeat:
    link: Endpoint[Lease, Report]
    capacity: int
    playing: set[str] = field(default_factory=set)

    @property
    def room(self) -> int:
        return self.capacity - len(self.playing)


class Dispatcher:
    def __init__(self) -> None:
        self._hosts: list[_HostSeat] = []
        self._queue: deque[Lease] = deque()
        self._open: dict[str, tuple[Lease, OnReport, _HostSeat | None]] = {}

    def attach(self, transport: Transport, capacity: int) -> Endpoint[Lease, Report]:
        """A new host that can play `capacity` episodes at once; returns our end of the link to it."""
        link: Endpoint[Lease, Report] = Endpoint(transport, self._hear)
        self._hosts.append(_HostSeat(link, capacity))
        return link

    def submit(self, lease: Lease, on_report: OnReport, first: bool = False) -> None:
        """Queue a lease; `first` puts it at the head of the line (evaluations, retries)."""
        self._open[lease.id] = (lease, on_report, None)
        if first:
            self._queue.appendleft(lease)
        else:
            self._queue.append(lease)
        self._fill()

    @property
    def playing(self) -> int:
        return sum(len(host.playing) for host in self._hosts)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def _fill(self) -> None:
        while self._queue:
            host = max(self._hosts, key=lambda h: h.room)
            if host.room <= 0:
                return
            lease = self._queue.popleft()
            _, on_report, _ = self._open[lease.id]
            self._open[lease.id] = (lease, on_report, host)
            host.playing.add(lease.id)
            host.link.say(lease.id, lease)

    def _hear(self, report: Report) -> None:
        lease, on_report, host = self._open.pop(report.lease)
        if host is not None:
            host.playing.discard(report.lease)
        on_report(lease, report)
        self._fill()
