"""WeightSync: a weight update is a checked protocol.

    trainer  push ──▶ store                     publish: between two train steps
    engines           stage: pull, verify ──▶ digests echoed to the driver     while they generate, and trainers train
    engines  suspend, commit, resume            commit: between two of their steps

Every phase has a wait of its own, with a name and a deadline. Digests that do not come back as they were sent stop the
run, and so does an engine that holds another version than it was told to commit: training on answers of unknown
weights is worse than not training. An engine that holds the right weights and does not compute with them scores the
probe otherwise than the trainer: it counts as dead. An engine that dies meanwhile is lost to the fleet, and the update
goes on with the others; an engine that joins catches up before it is asked. Engines may be one published version
behind, not two: a store keeps two versions, and a newcomer asks for the one that the others have. With `blocking`
transfer engines stand still while a version travels: the baseline that the background transfer is compared with.

Pipelines speak of versions by their numbers. Here they get their names (`versions.py`): when the trainer has gone back
to a checkpoint, `go_back` begins a new history, and what was pushed or staged in the old one has another name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rollweave.clock import Clock, DeadlineExceeded, Wait
from rollweave.config.control import PROBE_TOLERANCE
from rollweave.engines.protocol import EngineStats
from rollweave.errors import EngineGone
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.observability.events import Emitter
from rollweave.observability.jsonl import Json
from rollweave.training.protocol import Trainer
from rollweave.versions import Version
from rollweave.weights.buckets import Fingerprint, WeightMismatch
from rollweave.weights.probe import probe_gap
from rollweave.weights.store import WeightStoreError

Transfer = Literal["background", "blocking"]


@dataclass(slots=True)
class WeightSync:
    trainer: Trainer
    fleet: Fleet
    clock: Clock
    recorder: Emitter
    timeout: float
    transfer: Transfer = "background"
    probe_tolerance: float = PROBE_TOLERANCE
    """How far an engine may score the probe from the trainer, in nats."""
    sync_seconds: float = 0.0
    """Spent on weights since the start: pushing, staging, committing."""
    sync_exposed_seconds: float = 0.0
    """The part of it in which the engines stood still."""
    history: int = 0
    """How often the trainer has gone back."""
    _pushed: dict[Version, Fingerprint] = field(default_factory=dict)
    """The versions that engines have or may be given; none: they have what they were made from."""
    _swapping: bool = False
    """Some engines may have the next version already."""
    _staged: Version | None = None
    _offered: Version | None = None
    """The newest version that engines may be given."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Something was published or committed."""
    _newcomers: asyncio.Queue[EngineEntry] = field(default_factory=asyncio.Queue)
    """Engines that have joined and not begun to catch up."""

    def __post_init__(self) -> None:
        self.fleet.on_join = self._newcomers.put_nowait
        self.fleet.name_wait = lambda what: self.clock.wait("fleet", what, self.timeout)

    @property
    def version(self) -> Version:
        """What the engines generate with."""
        return self.fleet.version

    @property
    def checksum(self) -> str:
        """Of the newest version published."""
        return self._pushed[max(self._pushed)].checksum if self._pushed else ""

    def named(self, number: int) -> Version:
        """The version of this number in the present history."""
        return Version.of(self.history, number)

    async def publish(self, number: int) -> None:
        """The trainer hands over what it has. Engines get it with `stage` and `commit`, which need not be awaited
        before the next train step; what was published before must have arrived."""
        version = self.named(number)
        await self._until(
            lambda: self._offered in (None, self.version), f"the engines to have the version before {version}"
        )
        if self.transfer == "blocking":
            async with self.fleet.standing():
                stood = self.clock.now()
                await self._push(version)
                await self.stage(number)
            self.sync_exposed_seconds += self.clock.now() - stood
        else:
            await self._push(version)
        self._offered = version
        self._news.set()

    async def published(self, number: int) -> None:
        """Waits until there is this version to be had; training may take as long as it likes."""
        version = self.named(number)
        await self._until(lambda: version in (self.version, self._offered), f"the trainer to finish version {version}")

    async def stage(self, number: int) -> None:
        """Every engine pulls and verifies the version that is published, beside what it generates."""
        version = self.named(number)
        if version in (self.version, self._staged):
            return
        started = self.clock.now()
        echoed = await asyncio.gather(*(self._prepare(entry, self._pushed[version]) for entry in self.fleet.living()))
        seconds = self.clock.now() - started
        self._staged = version
        self.sync_seconds += seconds
        found = [fingerprint for fingerprint in echoed if fingerprint is not None]
        checksums, moved = [one.checksum for one in found], sum(one.moved_bytes for one in found)
        self._tell("weights.stage", version, echoed=checksums, moved_bytes=moved, seconds=seconds)

    async def commit(self, number: int) -> None:
        """stage, then suspend → update → resume. What becomes of answers under way is the engines' `in_flight`."""
        version = self.named(number)
        if version == self.version:
            return
        await self.stage(number)
        pushed = self._pushed[version]
        while late := [entry for entry in self.fleet.living() if entry.staged != version]:  # they joined meanwhile
            await asyncio.gather(*(self._prepare(entry, pushed) for entry in late))
        started = self.clock.now()
        self._swapping = True
        stood = await asyncio.gather(*(self._swap(entry, pushed) for entry in self.fleet.living()))
        self._swapping = False
        seconds, exposed = self.clock.now() - started, max(stood, default=0.0)
        self.fleet.version = version
        self._pushed = {name: pushed for name, pushed in self._pushed.items() if name >= version}
        self.sync_seconds += seconds
        self.sync_exposed_seconds += exposed
        self._tell("weights.commit", version, seconds=seconds, exposed_seconds=exposed)
        self._news.set()

    async def go_back(self, number: int, history: int) -> None:
        """The trainer has gone back to this version, and a new history begins: every engine gets what the trainer has
        now, whatever it has or was being given. Nothing else may be asked of the engines meanwhile."""
        await asyncio.gather(*(self._end_swap(entry) for entry in self.fleet.entries.values()))
        self.history, self._swapping = history, False
        self._pushed, self._staged, self._offered = {}, None, None
        await self.publish(number)
        await self.commit(number)
        while not self._newcomers.empty():
            self._newcomers.get_nowait()
        for entry in self.fleet.entries.values():
            if entry.state == "starting":
                self._newcomers.put_nowait(entry)

    async def _end_swap(self, entry: EngineEntry) -> None:
        """An engine whose swap was cut short still stands still."""
        if entry.swapping and entry.state != "gone":
            with self.fleet.surviving(entry), self._wait(f"{entry.id} to go on"):
                await entry.control.resume()
        entry.swapping = False

    async def welcome(self) -> None:
        """Let engines that join catch up, each by itself, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                entry = await self._newcomers.get()
                tasks.create_task(self.catch_up(entry), name=f"{entry.id} catches up")

    async def catch_up(self, entry: EngineEntry) -> None:
        """Give a newcomer the version that the others have, again if they have changed it meanwhile; then it serves.
        Nothing waits for it; if it takes too long, it is lost."""
        try:
            while entry.state == "starting":
                await self._until(lambda: not self._swapping, f"the engines to have their version, for {entry.id}")
                if entry.version != self.version:
                    await self._give(entry, self.version)
                await self.fleet.match_standing(entry)
                if entry.state == "starting" and entry.version == self.version and not self._swapping:
                    self.fleet.serve(entry)
        except DeadlineExceeded as late:
            self.fleet.lose(entry.id, str(late))

    async def _give(self, entry: EngineEntry, version: Version) -> None:
        pushed = self._pushed[version]  # not to be had any more once the others have the next but one
        try:
            await self._prepare(entry, pushed)
        except WeightStoreError:  # it has dropped this version: the others have a newer one by now, or soon
            if version == self.version and not self._swapping:
                raise
            return
        if entry.state == "starting":
            await self._swap(entry, pushed)

    async def reached(self, number: int) -> None:
        """Waits until the engines have this version, or a newer one."""
        version = self.named(number)
        await self._until(lambda: self.version >= version, f"the engines to have version {number}")

    async def _push(self, version: Version) -> None:
        started = self.clock.now()
        with self._wait(f"the trainer to push version {version}"):
            pushed = self._pushed[version] = await self.trainer.publish(int(version))
        seconds, buckets = self.clock.now() - started, len(pushed.buckets)
        self.sync_seconds += seconds
        self._tell("weights.publish", version, checksum=pushed.checksum, buckets=buckets, seconds=seconds)

    async def _prepare(self, entry: EngineEntry, pushed: Fingerprint) -> Fingerprint | None:
        """Returns what it has verified; None if it is gone."""
        with self.fleet.surviving(entry):
            with self._wait(f"{entry.id} to prepare version {Version(pushed.version)}"):
                echoed = await entry.control.prepare(pushed.version)
            if difference := pushed.differs(echoed):
                raise WeightMismatch(
                    f"{entry.id} staged other weights than the trainer published as version {Version(pushed.version)} "
                    f"({difference}): what passed between them is corrupt, and the run stops before it trains on it"
                )
            entry.staged = pushed.version
            return echoed
        return None

    async def _swap(self, entry: EngineEntry, pushed: Fingerprint) -> float:
        """Between two steps of one engine, whatever the others do; returns how long it stood still."""
        control, stood = entry.control, self.clock.now()
        with self.fleet.surviving(entry):
            entry.swapping = True  # noted before it is asked: it hears it, also if the update is cancelled meanwhile
            with self._wait(f"{entry.id} to end its step and stand still"):
                await control.suspend()
            stood = self.clock.now()
            with self._wait(f"{entry.id} to commit version {Version(pushed.version)}"):
                await control.commit(pushed.version)
                self._check(entry, pushed, await control.stats())  # at once while it stands still
                entry.swapping = False
                await control.resume()
            entry.version = pushed.version
        return self.clock.now() - stood

    def _check(self, entry: EngineEntry, pushed: Fingerprint, held: EngineStats) -> None:
        """Raises EngineGone if it does not compute with the weights that it holds, and that every other engine can."""
        if (held.version, held.checksum) != (pushed.version, pushed.checksum):
            raise WeightMismatch(
                f"{entry.id} holds version {Version(held.version)} ({held.checksum}) where version "
                f"{Version(pushed.version)} ({pushed.checksum}) was committed: the run stops before it trains on "
                "answers of unknown weights"
            )
        if pushed.probe and (gap := probe_gap(pushed.probe, held.probe)) > self.probe_tolerance:
            raise EngineGone(
                f"{entry.id} scores the probe {gap:.1e} nats away from the trainer after it committed version "
                f"{Version(pushed.version)}, and {self.probe_tolerance:.0e} is the limit (weights.probe_tolerance): it "
                "does not compute with the weights that it was given, and is given up before it samples"
            )

    def _tell(self, event: str, version: Version, **data: Json) -> None:
        self.recorder.emit(event, version=version.number, history=version.history, **data)

    async def _until(self, true: Callable[[], bool], what: str) -> None:
        """It has no deadline of its own: what it waits for, an update or a train step, has some."""
        with self.clock.wait("weight sync", what):
            while not true():
                self._news.clear()
                await self._news.wait()

    def _wait(self, what: str) -> Wait:
        return self.clock.wait("weight sync", what, self.timeout)
