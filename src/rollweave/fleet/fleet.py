"""Fleet: the engines of a run, and which trajectory is where. It lives in the driver; other parts ask it.

    join ─▶ starting ─▶ serving ◀──▶ draining        WeightSync lets a newcomer serve once it holds the fleet's weights
                └──────────┴──▶ gone ◀──┘            the caller whose call fails says `lose`; nothing waits for it

An engine joins under an id that is never used again. When it is gone its counters stay in the totals, so rates, which
are differences of totals, never go back. Every change raises `revision`, is an event, and is sent to the hosts.

FleetView: the engines that a request may go to, and how many trajectories each of them holds. The driver has one, which
counts the trajectories of all hosts; each host has one, which counts its own and is brought up to date by `FleetUpdate`
messages. A host's view may be old. Then a call to an engine that is gone fails and the host routes again, an engine
that drains still answers, and a new engine is not used for a moment; no token is wrong because of it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from rollweave.engines.protocol import EngineControl, EngineStats
from rollweave.errors import EngineGone
from rollweave.fleet.affinity import Affinity, Figures, TaskProfile
from rollweave.observability.events import Emitter, Recorder
from rollweave.trajectory import Trajectory
from rollweave.versions import Version

EngineId = str
"""`h20-3/1`: pool, number in it, and life. The successor of an engine that died has another id."""

EngineState = Literal["starting", "serving", "draining", "gone"]

EngineRole = Literal["rollout", "prefill", "decode"]
"""`prefill`: it computes contexts for engines that `decode`, and answers no request itself."""

STALE_ENTRIES = 8
"""Per engine, before a line is made anew."""


class EngineInfo(NamedTuple):
    """What a host knows of an engine."""

    id: EngineId
    state: EngineState
    tasks: tuple[str, ...]
    """Tasks whose trajectories prefer it; none: it takes any."""
    address: Any
    """Inline the engine itself, on Ray its worker."""
    role: EngineRole = "rollout"
    pool: str = "engine"


@dataclass(frozen=True, slots=True)
class FleetUpdate:
    """All engines that serve or drain, in order of joining. Of two updates the one of the higher revision is true."""

    revision: int
    engines: tuple[EngineInfo, ...]
    figures: Figures | None = None
    """What has been learned of tasks and pools; None: pools are not compared (`rollout.affinity: least_held`)."""


class _Line(NamedTuple):
    """The open engines for some tasks, by what they hold."""

    engines: list[EngineId]
    members: frozenset[EngineId]
    entries: list[tuple[float, int, EngineId]]
    """(load, order of joining, id), a heap; an entry that is no longer true is skipped when it comes up."""


class FleetView:
    def __init__(self, update: FleetUpdate | None = None) -> None:
        self.revision = -1
        self.engines: dict[EngineId, EngineInfo] = {}
        self.figures: Figures | None = None
        self.held: dict[EngineId, int] = {}
        self._mix: dict[EngineId, Counter[str]] = {}
        """What it holds by task."""
        self._weights: dict[str, dict[str, float]] = {}
        """By pool and task: how much of an engine a trajectory takes."""
        self._untried: set[str] = set()
        """Pools that are to get a trajectory, whatever is expected of them."""
        self._order: dict[EngineId, int] = {}
        self._named: frozenset[str] = frozenset()
        """Tasks that an open engine names."""
        self._lines: dict[tuple[str, str | None], _Line] = {}
        """By task ("": tasks that no open engine names), and by pool or over all pools."""
        self._pools: dict[str, list[str]] = {}
        """By task, in the same way."""
        self._gone: set[EngineId] = set()
        """Engines that failed a call, until the driver knows it too."""
        self.open_prefill: list[EngineId] = []
        """Open engines of role `prefill`, in order of joining."""
        if update is not None:
            self.update(update)

    def update(self, update: FleetUpdate) -> bool:
        """Returns whether it was news."""
        if update.revision <= self.revision:
            return False
        self.revision = update.revision
        self._gone &= {engine.id for engine in update.engines}  # the driver knows of the others
        self.engines = {engine.id: engine for engine in update.engines if engine.id not in self._gone}
        self._order = {id: order for order, id in enumerate(self.engines)}
        self.learn(update.figures)
        self._refresh()
        return True

    def learn(self, figures: Figures | None) -> None:
        """From now on these count. What engines hold is weighed anew."""
        self.figures = figures
        self._untried = set(figures.untried) if figures is not None else set()
        self._lines, self._weights = {}, {}

    def note_gone(self, id: EngineId) -> None:
        """A call to it failed. Ids are never used again, so no later update makes it open."""
        self._gone.add(id)
        if self.engines.pop(id, None) is not None:
            self._refresh()

    def is_open(self, id: EngineId) -> bool:
        """Whether new requests may go to it."""
        engine = self.engines.get(id)
        return engine is not None and engine.state == "serving"

    def open_to(self, task: str) -> Sequence[EngineId]:
        """Engines that name the task; if there are none, those that name no task; if there are none, all. Only open
        ones, in order of joining."""
        return self._line(task).engines

    def open_to_any(self) -> list[EngineId]:
        """All open engines that answer requests."""
        return [id for id, engine in self.engines.items() if engine.state == "serving" and engine.role != "prefill"]

    def pools_open_to(self, task: str) -> list[str]:
        """Their pools, in order of joining."""
        key = task if task in self._named else ""
        if key not in self._pools:
            self._pools[key] = list(dict.fromkeys(self.engines[id].pool for id in self._open_to(key)))
        return self._pools[key]

    def is_untried(self, pool: str) -> bool:
        """Whether it is to get a trajectory, whatever is expected of it."""
        return pool in self._untried

    def least_held(self, task: str, pool: str | None = None) -> EngineId:
        """Of those (of one pool), the one that holds the fewest trajectories, each weighed by how much of an engine it
        takes if that is known; ties by order of joining.

        There may be thousands: looking at each of them for every trajectory would take longer than its turns.
        """
        entries = self._line(task, pool).entries
        while entries[0][0] != self._load(entries[0][2]):
            heapq.heappop(entries)
        return entries[0][2]

    def mix(self, id: EngineId) -> Counter[str]:
        """How many trajectories of each task it holds."""
        return self._mix.get(id) or Counter()

    def hold(self, id: EngineId, more: int, task: str = "") -> None:
        self.held[id] = self.held.get(id, 0) + more
        self._mix.setdefault(id, Counter())[task] += more
        if more > 0 and self._untried and id in self.engines:
            self._untried.discard(self.engines[id].pool)
        lines = [line for line in self._lines.values() if id in line.members]
        load = self._load(id) if lines else 0.0
        for line in lines:
            heapq.heappush(line.entries, (load, self._order[id], id))

    def _load(self, id: EngineId) -> float:
        figures = self.figures
        if figures is None or not figures.pools:
            return self.held.get(id, 0)
        weights = self._weights.setdefault(self.engines[id].pool, {})
        load = 0.0
        for task, count in self.mix(id).items():
            if task not in weights:
                weights[task] = figures.weight(task, self.engines[id].pool)
            load += count * weights[task]
        return load

    def _line(self, task: str, pool: str | None = None) -> _Line:
        key = (task if task in self._named else "", pool)
        line = self._lines.get(key)
        if line is None or len(line.entries) > STALE_ENTRIES * len(line.engines):
            engines = line.engines if line is not None else self._open_to(*key)
            entries = [(self._load(id), self._order[id], id) for id in engines]
            heapq.heapify(entries)
            line = self._lines[key] = _Line(engines, frozenset(engines), entries)
        return line

    def _open_to(self, task: str, pool: str | None = None) -> list[EngineId]:
        open_ones = [self.engines[id] for id in self.open_to_any()]
        named = [engine for engine in open_ones if task in engine.tasks]
        unnamed = [engine for engine in open_ones if not engine.tasks]
        return [engine.id for engine in named or unnamed or open_ones if pool in (None, engine.pool)]

    def _refresh(self) -> None:
        self._named = frozenset(task for id in self.open_to_any() for task in self.engines[id].tasks)
        self.open_prefill = [id for id, engine in self.engines.items() if engine.role == "prefill" and self.is_open(id)]
        self._lines, self._pools = {}, {}
        self.held = {id: held for id, held in self.held.items() if held and id in self.engines}
        self._mix = {id: mix for id, mix in self._mix.items() if id in self.held}


GAUGES = frozenset({"running", "waiting", "version", "checksum", "probe", "memory_mb"})
"""What an engine says about now. Everything else it counts since its start."""

COUNTERS = tuple(field.name for field in fields(EngineStats) if field.name not in GAUGES)


@dataclass(slots=True, eq=False)
class EngineEntry:
    """One engine as the driver knows it."""

    id: EngineId
    control: EngineControl
    address: object = None
    """What a host reaches it by; None: `control` itself, in this process."""
    pool: str = "engine"
    device: str = ""
    tasks: tuple[str, ...] = ()
    """Tasks whose trajectories prefer it; none: it takes any."""
    role: EngineRole = "rollout"
    state: EngineState = "starting"
    cause: str = ""
    """Why it is gone."""
    version: int = 0
    staged: int = 0
    """The newest version that it has verified."""
    suspensions: int = 0
    """How often it was told to stand still."""
    swapping: bool = False
    """It was told to stand still once more, while it changes its weights."""
    seen: EngineStats = field(default_factory=EngineStats)
    """What it said of itself when it was last asked."""

    def info(self) -> EngineInfo:
        address = self.control if self.address is None else self.address
        return EngineInfo(self.id, self.state, self.tasks, address, self.role, self.pool)


class _Place(NamedTuple):
    """Where a trajectory is."""

    engine: EngineId
    prefill: EngineId | None
    """The engine that computes its contexts, if `engine` does not."""
    task: str
    expected: float | None
    """Seconds that it was expected to need, if pools were compared."""


@dataclass(frozen=True, slots=True)
class FleetStats:
    """All engines at one moment."""

    totals: EngineStats
    """The sum of all counters since the start of the run."""
    engines: tuple[EngineStats, ...]
    """Of each engine that lives."""


class Fleet:
    def __init__(self) -> None:
        self.entries: dict[EngineId, EngineEntry] = {}
        """In order of joining, which breaks ties."""
        self.revision = 0
        self.version = Version(0)
        """What the engines generate with; written by WeightSync alone."""
        self.on_join: Callable[[EngineEntry], None] = lambda entry: self._change(entry, "serving")
        """An engine that joins serves at once, unless there is a WeightSync: that lets it catch up first."""
        self.on_change: list[Callable[[EngineEntry], None]] = []
        self.moves = 0
        """Trajectories that changed their engine, since the start."""
        self.affinity: Affinity | None = None
        """Learns which pool suits which task; None: pools are not compared."""
        self.name_wait: Callable[[str], AbstractContextManager[object]] = lambda what: nullcontext()
        """Gives a wait for an engine its name and its deadline. Set by WeightSync, as `on_join` is."""
        self._recorder: Emitter = Recorder(lambda: 0.0)
        self._view = FleetView()
        self._places: dict[str, _Place] = {}
        """By attempt: the engine that it was leased with or has moved to."""
        self._changed = asyncio.Event()
        """An engine has another state."""
        self._left = asyncio.Event()
        """A trajectory has left an engine."""
        self._standing = 0
        self._asleep = 0

    def listen(self, recorder: Emitter) -> None:
        """From now on changes are events; first the engines that are there."""
        self._recorder = recorder
        for entry in self.living():
            self._tell_joined(entry)

    # ------------------------------------------------------------------------------------------- joining and leaving

    def join(self, entry: EngineEntry) -> None:
        """A new engine. It is asked nothing before it has caught up with the weights of the others."""
        assert entry.id not in self.entries, f"two engines are called {entry.id}"
        self.entries[entry.id] = entry
        self._tell_joined(entry)
        self.on_join(entry)

    def _tell_joined(self, entry: EngineEntry) -> None:
        tasks = list(entry.tasks)
        self._recorder.emit("engine.join", engine=entry.id, pool=entry.pool, device=entry.device, tasks=tasks)

    def serve(self, entry: EngineEntry) -> None:
        """It holds the weights of the others, and stands still if they do."""
        assert entry.version == self.version, f"{entry.id} has version {entry.version}, the fleet {self.version}"
        self._recorder.emit("engine.serve", engine=entry.id, version=self.version.number)
        self._change(entry, "serving")

    def use(self, ids: Collection[EngineId]) -> None:
        """From now on trajectories go to these engines only; what the others hold moves."""
        changed = [entry for entry in self.living() if (entry.state == "serving") != (entry.id in ids)]
        for entry in changed:
            entry.state = "serving" if entry.id in ids else "draining"
        if changed:
            self._recorder.emit("fleet.use", engines=list(ids))
            self._change(changed[0], changed[0].state)

    async def until_serving(self, id: EngineId) -> None:
        """Waits until an engine that joined has caught up, or is gone."""
        with self.name_wait(f"{id} to catch up"):
            while self.entries[id].state == "starting":
                self._changed.clear()
                await self._changed.wait()

    async def retire(self, id: EngineId, cause: str) -> None:
        """An engine leaves in order: what it holds moves to the others first."""
        entry = self.entries[id]
        if entry.state == "serving":
            self._recorder.emit("engine.drain", engine=id, cause=cause)
            self._change(entry, "draining")
            await self.emptied([id])
        self.lose(id, cause)

    def lose(self, id: EngineId, cause: str) -> None:
        """It is gone for good. Saying so twice does no harm."""
        entry = self.entries[id]
        if entry.state == "gone":
            return
        for attempt, place in list(self._places.items()):
            if id in (place.engine, place.prefill):
                self.leave(attempt)
            if id == place.prefill:
                self._hold(attempt, place._replace(prefill=None))
        entry.cause = cause
        self._recorder.emit("engine.gone", engine=id, cause=cause)
        self._change(entry, "gone")

    @contextmanager
    def surviving(self, entry: EngineEntry) -> Iterator[None]:
        """Around a call to an engine: if it is gone, the fleet loses it and the caller goes on with the others."""
        try:
            yield
        except EngineGone as error:
            self.lose(entry.id, str(error))

    def _change(self, entry: EngineEntry, state: EngineState) -> None:
        entry.state = state
        self.revision += 1
        self._changed.set()
        for hear in self.on_change:
            hear(entry)

    # ---------------------------------------------------------------------------------------------- who is there

    def serving(self) -> list[EngineEntry]:
        """The engines that requests may go to, in order of joining."""
        return [entry for entry in self.entries.values() if entry.state == "serving"]

    def living(self) -> list[EngineEntry]:
        """Those that serve or drain: they hold the fleet's weights and may hold requests."""
        return [entry for entry in self.entries.values() if entry.state in ("serving", "draining")]

    @property
    def size(self) -> int:
        return len(self.living())

    def update(self) -> FleetUpdate:
        """What a host has to know."""
        figures = self.affinity.figures if self.affinity is not None else None
        return FleetUpdate(self.revision, tuple(entry.info() for entry in self.living()), figures)

    @property
    def view(self) -> FleetView:
        """Where a trajectory may go now. (Made anew after a change when it is next asked for: a thousand engines that
        join one by one would make it a thousand times.)"""
        if self._view.revision != self.revision:
            self._view.update(self.update())
        return self._view

    # ------------------------------------------------------------------------------------------------ trajectories

    def place(
        self,
        attempt: str,
        engine: EngineId,
        prefill: EngineId | None = None,
        task: str = "",
        expected: float | None = None,
    ) -> None:
        """A trajectory was leased with this engine, or has moved to it; `prefill` computes its contexts."""
        if attempt in self._places:
            self.moves += 1
            self.leave(attempt)
        if self.is_alive(engine):
            self._hold(attempt, _Place(engine, prefill if self.is_alive(prefill) else None, task, expected))

    def leave(self, attempt: str) -> None:
        """The trajectory has ended, or its engine has."""
        if (place := self._places.pop(attempt, None)) is not None:
            self.view.hold(place.engine, -1, place.task)
            if place.prefill is not None:
                self.view.hold(place.prefill, -1)
            self._left.set()

    def learn_from(self, trajectory: Trajectory) -> None:
        """It has ended by itself, and has not left its engine: what it needed is learned."""
        place = self._places.get(trajectory.id)
        if self.affinity is None or place is None or len(self.view.pools_open_to(place.task)) < 2:
            return
        turns = trajectory.turns
        context = trajectory.length - trajectory.sampled_tokens
        waits = sum(turn.environment_seconds for turn in turns)
        needed = TaskProfile(context, trajectory.sampled_tokens, len(turns), waits)
        took = sum(turn.generate_seconds for turn in turns)
        self.affinity.ended(place.task, self.entries[place.engine].pool, needed, took, place.expected)

    def learn_from_engines(self) -> None:
        """Once a step, after a `look`: from now on trajectories are routed by what has been learned up to here."""
        reports = {entry.id: (entry.pool, entry.seen) for entry in self.living() if entry.role != "prefill"}
        if self.affinity is None or len({pool for pool, _ in reports.values()}) < 2:
            return
        for wrong in self.affinity.step(reports):
            self._recorder.emit("affinity.wrong", **wrong._asdict())
        self.view.learn(self.affinity.figures)

    def is_alive(self, id: EngineId | None) -> bool:
        """Whether an engine of this id has joined and is not gone."""
        return id in self.entries and self.entries[id].state != "gone"

    def pool_of(self, id: EngineId) -> str:
        """Also of an engine that is gone; empty if none of this id has joined."""
        return self.entries[id].pool if id in self.entries else ""

    def _hold(self, attempt: str, place: _Place) -> None:
        self._places[attempt] = place
        self.view.hold(place.engine, +1, place.task)
        if place.prefill is not None:
            self.view.hold(place.prefill, +1)

    async def emptied(self, ids: Collection[EngineId]) -> None:
        """Waits until no trajectory is on these engines. A host says that one moved when its engine let go of it."""
        with self.name_wait(f"{', '.join(ids)} to hand over what they hold"):
            while any(place.engine in ids or place.prefill in ids for place in self._places.values()):
                self._left.clear()
                await self._left.wait()

    # ------------------------------------------------------------------------------------------------- all of them

    @asynccontextmanager
    async def standing(self, asleep: bool = False) -> AsyncIterator[None]:
        """Inside, the engines stand still, one that joins meanwhile too. It nests.

        `asleep`: they also give their memory on the device back meanwhile.
        """
        self._standing += 1
        self._asleep += asleep
        try:
            await asyncio.gather(*(self.match_standing(entry) for entry in self.living()))
            yield
        finally:
            self._standing -= 1
            self._asleep -= asleep
            await asyncio.gather(*(self.match_standing(entry) for entry in self.living()))

    async def match_standing(self, entry: EngineEntry) -> None:
        """Let an engine stand still if the fleet does, and go on if it does."""
        with self.surviving(entry):
            while entry.suspensions != self._standing:
                if entry.suspensions < self._standing:
                    entry.suspensions += 1
                    with self.name_wait(f"{entry.id} to end its step and stand still"):
                        await entry.control.suspend(self._asleep > 0)
                else:
                    entry.suspensions -= 1
                    with self.name_wait(f"{entry.id} to go on"):
                        await entry.control.resume()

    async def look(self) -> FleetStats:
        """Ask all engines what they have done so far, side by side."""
        await asyncio.gather(*(self._look_at(entry) for entry in self.living()))
        return self.last_seen()

    async def _look_at(self, entry: EngineEntry) -> None:
        with self.surviving(entry), self.name_wait(f"{entry.id} to say what it has done"):
            entry.seen = await entry.control.stats()

    def last_seen(self) -> FleetStats:
        """What the engines said when they were last asked."""
        totals = {name: sum(getattr(entry.seen, name) for entry in self.entries.values()) for name in COUNTERS}
        return FleetStats(EngineStats(**totals), tuple(entry.seen for entry in self.living()))
