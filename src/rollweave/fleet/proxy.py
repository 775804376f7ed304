"""LLMProxy: hands the requests of a host's episodes to engines.

A trajectory stays with the engine that it was leased with, because that engine holds its KV cache. When the engine is
gone or drains, the proxy routes it again on its own view of the fleet and tells the driver. A request that is taken out
of an engine that drains goes on elsewhere from what was sampled: a token is a function of the request's seed, its place
and its context, so the answer is the one that the first engine would have given. A request on an engine that died
begins its turn again. With no engine open, requests wait; their deadline is the turn's.

If the engine only decodes, each request goes first to the prefill engine of the trajectory's route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter

from rollweave.clock import Clock
from rollweave.engines.protocol import Completion, EngineClient, Request
from rollweave.errors import EngineGone
from rollweave.fleet.fleet import EngineId, EngineInfo, FleetUpdate, FleetView
from rollweave.fleet.router import Route, RouteAsk, choose, surplus, with_prefill

Connect = Callable[[EngineInfo], EngineClient]
"""How a host reaches an engine. Inline, its address is the engine itself."""


@dataclass(slots=True)
class _Guest:
    """A trajectory, and where it is."""

    ask: RouteAsk
    engine: EngineId | None = None
    client: EngineClient | None = None
    prefill: EngineId | None = None
    """The engine that computes its contexts; None: `engine` does it itself."""
    request: str | None = None
    """The one that is being answered."""
    moving: bool = False
    """Its request is being taken out of its engine, to be given to another."""
    given_up: bool = False
    """The answer is not wanted any more."""


class LLMProxy:
    def __init__(self, clock: Clock, fleet: FleetUpdate, connect: Connect = attrgetter("address")) -> None:
        self.on_route: Callable[[str, Route], None] = lambda attempt, route: None
        """Hears that a trajectory changed its engine."""
        self.on_gone: Callable[[EngineId], None] = lambda engine: None
        """Hears that the driver has given an engine up: if it does not answer, nothing can be taken out of it."""
        self._clock = clock
        self._connect = connect
        self._view = FleetView(fleet)
        self._clients = {engine.id: connect(engine) for engine in fleet.engines}
        self._guests: dict[str, _Guest] = {}
        self._changed = asyncio.Event()
        """The fleet did, or a waiting trajectory was given up."""

    # ----------------------------------------------------------------------------------------- what episodes call

    def begin(self, ask: RouteAsk, engine: EngineId | None, prefill: EngineId | None = None) -> None:
        """A trajectory begins, on the engines that the driver chose; None: there was none to choose."""
        guest = self._guests[ask.attempt] = _Guest(ask)
        if engine is None:
            return
        if self._view.is_open(engine) and (prefill is None or self._view.is_open(prefill)):
            self._settle(guest, engine, prefill)
        else:
            self._find(guest, "its engine is not open")

    async def generate(self, request: Request) -> Completion:
        """Sample a turn."""
        guest = self._guests.get(request.trajectory)
        if guest is None:
            guest = self._guests[request.trajectory] = _Guest(RouteAsk(request.trajectory, request.task))
        while True:
            client = guest.client
            if client is None:
                client = await self._some_engine(guest)
                if client is None:
                    return Completion(request.id, list(request.begun), "aborted")
            guest.request = request.id
            guest.ask = guest.ask._replace(context=len(request.tokens))
            try:
                completion = await self._generate(guest, client, request)
            except EngineGone:
                self._flee(guest)
                continue
            finally:
                guest.request = None
            if not guest.moving:
                return completion
            self._move(guest)
            if completion.finish != "aborted":  # it ended before it could be taken out
                return completion
            request = replace(request, begun=tuple(completion.spans))

    def abort(self, trajectory: str) -> None:
        """Stop what is being generated for it; an answer that has ended already is none the worse."""
        guest = self._guests.get(trajectory)
        if guest is None:
            return
        guest.moving, guest.given_up = False, True
        if guest.client is None:
            self._changed.set()
        elif guest.request is not None:
            self._take_out(guest, guest.client, guest.request)

    def release(self, trajectory: str) -> None:
        """The trajectory has ended: forget its engine, free its cache."""
        guest = self._guests.pop(trajectory, None)
        if guest is not None:
            self._set_prefill(guest, None)
            if guest.client is not None:
                self._leave(guest)

    # ------------------------------------------------------------------------------------------------ the fleet

    def update(self, update: FleetUpdate) -> None:
        """The fleet has changed: what is on an engine that drains or is gone moves, and after a reopening what is too
        much for one engine."""
        before = self._view.engines
        if not self._view.update(update):
            return
        now = self._view.engines
        for id in now.keys() - self._clients.keys():
            self._clients[id] = self._connect(now[id])
        for id in self._clients.keys() - now.keys():
            del self._clients[id]
            self.on_gone(id)
        reopened = any(_drains(before.get(id)) and not _drains(engine) for id, engine in now.items())
        for attempt in self._to_move(reopened):
            self._send_away(self._guests[attempt])
        self._changed.set()

    def _to_move(self, reopened: bool) -> list[str]:
        if reopened:
            placed = {name: (guest.engine, guest.ask) for name, guest in self._guests.items() if guest.engine}
            return surplus(placed, self._view)
        return [name for name, guest in self._guests.items() if guest.engine and not self._view.is_open(guest.engine)]

    def _send_away(self, guest: _Guest) -> None:
        """Between two turns at once; within one when its engine has given up the request."""
        if guest.request is None:
            self._move(guest)
        elif not guest.given_up and not guest.moving and guest.client is not None:
            guest.moving = True
            self._take_out(guest, guest.client, guest.request)

    def _take_out(self, guest: _Guest, client: EngineClient, request: str) -> None:
        """Abort the request on the engine that has it; the other one of the two does not know it."""
        client.abort(request)
        if guest.prefill in self._clients:
            self._clients[guest.prefill].abort(request)

    def _move(self, guest: _Guest) -> None:
        guest.moving = False
        self._leave(guest)
        self._find(guest, "moved")

    def _flee(self, guest: _Guest) -> None:
        """Its engine is gone."""
        guest.moving = False
        assert guest.engine is not None
        self._view.note_gone(guest.engine)
        self._clients.pop(guest.engine, None)
        guest.engine = guest.client = None
        if not guest.given_up:
            self._find(guest, "its engine is gone")

    # ------------------------------------------------------------------------------------------------ the place

    async def _some_engine(self, guest: _Guest) -> EngineClient | None:
        """The place of the trajectory as soon as an engine is open; None if it is given up. The episode keeps the
        deadline of the turn."""
        while guest.client is None and not guest.given_up:
            self._find(guest, "it waited for an engine")
            if guest.client is None:
                with self._clock.wait("proxy", f"an engine to serve {guest.ask.attempt}"):
                    self._changed.clear()
                    await self._changed.wait()
        return guest.client

    def _find(self, guest: _Guest, moved: str) -> None:
        route = choose(guest.ask, self._view, moved, guest.prefill)
        if route is not None:
            self._settle(guest, route.engine, route.prefill)
            self.on_route(guest.ask.attempt, route)

    def _settle(self, guest: _Guest, engine: EngineId, prefill: EngineId | None) -> None:
        guest.engine, guest.client = engine, self._clients[engine]
        self._view.hold(engine, +1, guest.ask.task)
        self._set_prefill(guest, prefill)

    def _leave(self, guest: _Guest) -> None:
        assert guest.engine is not None and guest.client is not None
        if guest.engine in self._view.engines:
            self._view.hold(guest.engine, -1, guest.ask.task)
        guest.client.release(guest.ask.attempt)
        guest.engine = guest.client = None

    # -------------------------------------------------------------------------------------------- prefill engines

    async def _generate(self, guest: _Guest, client: EngineClient, request: Request) -> Completion:
        """With a prefill engine, that one computes the context, and the other one fetches its KV cache from there and
        answers."""
        while guest.prefill is not None:
            prefill = guest.prefill
            if not await self._has_computed(prefill, replace(request, decode_on=guest.engine)):
                self._change_prefill(guest)
            elif guest.moving or guest.given_up:
                return Completion(request.id, list(request.begun), "aborted")
            else:
                address = self._view.engines[prefill].address if prefill in self._view.engines else None
                return await client.generate(replace(request, kv_from=address))
        return await client.generate(request)

    async def _has_computed(self, prefill: EngineId, request: Request) -> bool:
        """Whether the prefill engine has done its part, or was told to stop; it has not if it drains or is gone."""
        if not self._view.is_open(prefill):
            return False
        try:
            await self._clients[prefill].generate(request)
        except EngineGone:
            self._view.note_gone(prefill)
            self._clients.pop(prefill, None)
            return False
        return True

    def _change_prefill(self, guest: _Guest) -> None:
        assert guest.engine is not None
        if guest.engine not in self._view.engines:  # gone as well, as asking it will show
            self._set_prefill(guest, None)
            return
        route = with_prefill(Route(guest.engine, "its prefill engine is not open", {}), self._view, None)
        self._set_prefill(guest, route.prefill)
        self.on_route(guest.ask.attempt, route)

    def _set_prefill(self, guest: _Guest, prefill: EngineId | None) -> None:
        before, guest.prefill = guest.prefill, prefill
        if before == prefill:
            return
        if before is not None and before in self._view.engines:
            self._view.hold(before, -1)
            self._clients[before].release(guest.ask.attempt)
        if prefill is not None:
            self._view.hold(prefill, +1)


def _drains(engine: EngineInfo | None) -> bool:
    return engine is not None and engine.state == "draining"
