"""Player: walks a stretch of a recording, hands over what came from outside, compares what was decided."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollweave.config.job import Job
from rollweave.observability.events import Event, Recorder
from rollweave.observability.jsonl import encode
from rollweave.pipelines.assemble import Listeners, Machinery, assemble
from rollweave.pipelines.drive import Drive
from rollweave.pipelines.parts import Parts
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import Endpoint, Packet
from rollweave.rollout.messages import Cancel, Lease, Report
from rollweave.rollout.state import SchedulerState
from rollweave.simulation.recorded.recording import (
    Gates,
    RecordedClock,
    RecordedEngine,
    RecordedTrainer,
    nobody,
    report,
    unseen_report,
)
from rollweave.tasks import TaskSource

DECISIONS = frozenset(
    {
        *("group.admit", "group.renewed", "group.complete", "group.failed", "group.filtered", "group.dropped"),
        *("group.requeued", "member.retry", "episode.begin", "episode.end", "trajectory.end", "batch.ready"),
        *("attempt.end", "task.end", "step.end", "checkpoint.begin", "eval.begin"),
    }
)
"""Events that are compared: what the control plane decides, and its books."""

BEFORE_THE_START = frozenset({"run.start", "run.resume", "host.attach", "host.detach"})

SETTLE = 1e-7
"""Virtual seconds in which whoever is ready runs, until everybody waits."""

NEVER = 1e12
"""A deadline that no replay meets: real ones do not count time in which the loop was blocked."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Recording and replay differ from this place of the stretch on."""

    place: int
    replayed: Event | None


class Player:
    def __init__(self, job: Job, source: TaskSource, events: Sequence[Event], state: SchedulerState | None) -> None:
        self.clock = RecordedClock()
        self.compared = 0
        """Decisions that came out the same."""
        self.saved: SchedulerState | None = None
        """What the last checkpoint would have kept."""
        self._job = _unhurried(job, events)
        self._source = source
        self._events = events
        self._state = state
        self._gates = Gates()
        self._hosts: dict[int, Endpoint[Lease | Cancel, Report]] = {}
        self._decided: list[Event] = []
        self._driving: asyncio.Task[None] | None = None
        self._ends = {event.data["id"]: event.data for event in events if event.name == "trajectory.end"}
        self._begun = {event.data["id"] for event in events if event.name == "episode.begin"}

    async def play(self) -> Parting | None:
        """To the end of the stretch, or to the first difference."""
        recorder = Recorder(self.clock.now, [self._hear])
        self._dispatcher = Dispatcher(self._job.rollout.scheduling)
        first = self._state.version if self._state is not None else 0
        machinery = Machinery([RecordedEngine(self._gates, first)], RecordedTrainer(self._gates), self._dispatcher)
        listeners = Listeners(recorder)
        parts = assemble(self._job, machinery, self._source, (), Path("replayed"), self.clock, listeners)
        parts.driver_state = lambda: self._save(parts)
        self._drive = Drive(self._job, parts, recorder)
        async with asyncio.TaskGroup() as tasks:
            parting = await self._walk(lambda: tasks.create_task(self._go(parts), name="replay"))
            parts.stopping = True  # the recording is over: nothing is to be saved
            if self._driving is not None:
                self._driving.cancel()
        return parting

    async def _walk(self, start: Callable[[], asyncio.Task[None]]) -> Parting | None:
        for place, event in enumerate(self._events):
            if self._driving is None and event.name not in BEFORE_THE_START:
                self._driving = start()
            if event.name not in DECISIONS:
                await self._hand_over(event)
            elif not await self._same(event):
                return Parting(place, self._decided[self.compared] if self.compared < len(self._decided) else None)
        return None

    async def _go(self, parts: Parts) -> None:
        try:
            if self._state is not None:
                await parts.restore(Path("replayed"), self._state)
            await self._drive.run()
        except Exception as error:  # what the control plane raises is a result, and told where it is missed
            self._decided.append(Event(self.clock.now(), "run.failed", {"error": str(error)}))

    def _save(self, parts: Parts) -> str:
        self.saved = parts.scheduler.state(parts.version)
        return ""

    def _hear(self, event: Event) -> None:
        if event.name in DECISIONS:
            self._decided.append(event)

    async def _settle(self, event: Event) -> None:
        """Let everybody run who can, and time pass up to the event. Not between reports: they may come together."""
        await self.clock.sleep(max(SETTLE, event.time - self.clock.now()))

    # ------------------------------------------------------------------------------------------------ comparing

    async def _same(self, recorded: Event) -> bool:
        """Whether the next decision is the recorded one."""
        if self.compared == len(self._decided):
            self._cause(recorded)
        if self.compared == len(self._decided):
            await self._settle(recorded)
        if self.compared == len(self._decided):
            return False
        replayed = self._decided[self.compared]
        if replayed.name != recorded.name or _plain(replayed.data) != recorded.data:
            return False
        self.compared += 1
        return True

    def _cause(self, recorded: Event) -> None:
        """Some of what is compared follows from something outside: let that happen."""
        match recorded.name:
            case "episode.end":
                self._end_episode(str(recorded.data["id"]))
            case "member.retry":
                self.clock.fire(f"retry {recorded.data['group']}.{recorded.data['member']}")
            case "step.end":
                self._gates.open(f"row {recorded.data['step']}")

    def _end_episode(self, id: str) -> None:
        if (found := self._dispatcher.player(id)) is not None:
            lease, link = found
            link.receive(Packet({id: self._report(lease)}, confirmed=[id]))

    def _report(self, lease: Lease) -> Report:
        if (end := self._ends.get(lease.id)) is not None:
            return report(lease, end)
        again = f"{lease.id.rpartition('.')[0]}.{lease.attempt + 1}"
        return unseen_report(lease, failed=again in self._begun)

    # -------------------------------------------------------------------------------------------- handing over

    async def _hand_over(self, event: Event) -> None:
        data: Any = event.data
        match event.name:
            case "host.attach":
                self._hosts[data["host"]] = self._dispatcher.attach(nobody, data["capacity"])
            case "host.detach":
                self._dispatcher.detach(self._hosts.pop(data["host"]))
            case "concurrency.begin" | "concurrency.change":
                self._dispatcher.limit = data["limit"]
            case "phase.end" if data["phase"] == "train":
                await self._let(event, f"train {data['step']}")
            case "weights.publish":
                await self._let(event, f"publish {data['version']}")
            case "weights.stage":
                await self._let(event, f"stage {data['version']}")
            case "weights.commit":
                await self._let(event, f"commit {data['version']}")
            case "checkpoint.saved":
                await self._let(event, f"save {Path(data['folder']).name}")
            case "run.stop":
                self._drive.stop()
                await self._settle(event)
            case "run.failed" if self._driving is not None:
                self._driving.cancel()  # as whatever failed outside has ended the drive
                await self._settle(event)

    async def _let(self, event: Event, gate: str) -> None:
        self._gates.open(gate)
        await self._settle(event)


def _unhurried(job: Job, events: Sequence[Event]) -> Job:
    """The job without what is in the recording: deadlines, an adapted concurrency, a target that ends it early."""
    reached = [int(event.data["step"]) for event in events if event.name == "target.reached"]  # type: ignore[arg-type]
    deadlines = job.rollout.deadlines.model_copy(update={"get_batch": NEVER, "weight_sync": NEVER})
    rollout = job.rollout.model_copy(update={"deadlines": deadlines, "concurrency": "fixed"})
    return job.model_copy(
        update={
            "rollout": rollout,
            "evaluation": job.evaluation.model_copy(update={"target": None}),
            "training": job.training.model_copy(update={"steps": reached[0] + 1}) if reached else job.training,
        }
    )


def _plain(data: object) -> Any:
    """As it would be read back."""
    return json.loads(encode(data))
