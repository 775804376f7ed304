"""`rollweave replay RUN`: the recorded run's control plane once more, decision by decision.

The events of a run hold what came from outside (episodes that ended, train steps, weights that arrived, hosts that
came and went) and what the control plane made of it (groups admitted, batches formed, work given up, books). The
replay hands the former to the very same scheduler, dispatcher and pipeline on the virtual clock, in the recorded
order, and compares the latter event by event. So a run is a test case: if code that decides was changed since, the
first decision that comes out differently is shown with what led to it.

A resumed run is replayed stretch by stretch; each goes on from the state that its own replay would have saved. Where
the trainer died and the run went back, the replayed one goes back, too.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rollweave.clock import run_virtual
from rollweave.config.job import Job
from rollweave.errors import RunFolderError
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.observability.events import Event, Recorder
from rollweave.observability.jsonl import encode
from rollweave.pipelines.assemble import Drive, assemble
from rollweave.pipelines.checkpoints import DriverState, Kept
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import HostLink, Lease, Packet, Report
from rollweave.rollout.state import SchedulerState
from rollweave.simulation.recorded.recording import (
    RECORDED,
    Gates,
    RecordedClock,
    RecordedEngine,
    RecordedRewards,
    RecordedTrainer,
    discard,
    report,
    unseen_report,
)
from rollweave.tasks import TaskSource
from rollweave.versions import Version

DECISIONS = frozenset(
    {
        *("group.admit", "group.renewed", "group.complete", "group.failed", "group.filtered", "group.dropped"),
        *("group.requeued", "member.retry", "episode.begin", "episode.end", "trajectory.end", "batch.ready"),
        *("reward.begin", "reward.end", "attempt.end", "task.end", "step.end", "checkpoint.begin", "eval.begin"),
        "attempts.undone",
    }
)
"""Events that are compared: what the control plane decides, and its books."""

BEFORE_THE_START = frozenset({"run.start", "run.resume", "engine.join", "host.attach", "host.detach"})

SETTLE = 1e-7
"""Virtual seconds in which all tasks that are ready run, until all of them wait."""

CHECKPOINTS = Path("replayed")
"""Nothing is written there."""

NEVER = 1e12
"""A deadline that no replay meets: real ones do not count time in which the loop was blocked."""


INPUTS_SHOWN = 6


@dataclass(slots=True)
class Difference:
    """The first place where recording and replay part."""

    decision: int
    """Its number in the stretch or, once `replay` has it, in the run; counted from 1."""
    recorded: Event
    replayed: Event | None
    before: list[Event]
    """What was recorded just before."""

    def __str__(self) -> str:
        return "\n".join(
            [
                f"decision {self.decision} ({self.recorded.time:.3f} s into the run) came out differently",
                f"  recorded  {_show(self.recorded)}",
                f"  replayed  {_show(self.replayed)}",
                "  after",
                *(f"    {event.time:10.3f} s  {_show(event)}" for event in self.before),
            ]
        )


class Player:
    """Walks a stretch of a recording, hands over what came from outside, compares what was decided."""

    def __init__(self, job: Job, source: TaskSource, events: Sequence[Event], state: SchedulerState | None) -> None:
        self.clock = RecordedClock()
        self.compared = 0
        """Decisions that came out the same."""
        self.saved = state
        """What the last checkpoint would have kept."""
        self._all_saved = {} if state is None else {state.version: state}
        self._back: asyncio.Queue[int] = asyncio.Queue()
        """The versions that the run went back to."""
        self._job = _unhurried(job, events)
        self._source = source
        self._events = events
        self._state = state
        self._gates: Gates = defaultdict(asyncio.Event)
        self._trainer = RecordedTrainer(self._gates)
        self._engine = RecordedEngine(self._gates, state.version if state is not None else 0)
        self._rewards = RecordedRewards()
        self._hosts: dict[int, HostLink] = {}
        self._decided: list[Event] = []
        self._driving: asyncio.Task[None] | None = None
        self._ends = {event.data["id"]: event.data for event in events if event.name == "trajectory.end"}
        self._awaited = {
            str(event.data["id"]): tuple(map(str, event.data["rewards"]))  # type: ignore[arg-type]
            for event in reversed(events)  # the first counts: after going back some are asked for again
            if event.name == "reward.begin"
        }
        self._tried = {event.data["id"] for event in events if event.name in ("episode.begin", "eval.retry")}

    async def play(self) -> Difference | None:
        """To the end of the stretch, or to the first difference."""
        recorder = Recorder(self.clock.now, [self._hear])
        fleet = Fleet()
        self._dispatcher = Dispatcher.of(self._job.rollout, fleet)
        fleet.join(EngineEntry(RECORDED, self._engine))
        self._drive = drive = assemble(
            self._job.control,
            fleet,
            self._dispatcher,
            self._trainer,
            self._source,
            (),
            CHECKPOINTS,
            self.clock,
            recorder,
            rewards=self._rewards,
        )
        drive.loop.checkpoints.describe = self._save
        drive.loop.checkpoints.rewind = self._rewind
        async with asyncio.TaskGroup() as tasks:
            difference = await self._walk(lambda: tasks.create_task(self._go(drive), name="replay"))
            drive.loop.state.stopping = True  # the recording is over: nothing is to be saved
            if self._driving is not None:
                self._driving.cancel()
        return difference

    async def _walk(self, start: Callable[[], asyncio.Task[None]]) -> Difference | None:
        for place, event in enumerate(self._events):
            if self._driving is None and event.name not in BEFORE_THE_START:
                self._driving = start()
            if event.name not in DECISIONS:
                await self._hand_over(event)
            elif not await self._same(event):
                replayed = self._decided[self.compared] if self.compared < len(self._decided) else None
                before = list(self._events[max(0, place - INPUTS_SHOWN) : place])
                return Difference(self.compared + 1, event, replayed, before)
        return None

    async def _go(self, drive: Drive) -> None:
        try:
            if self._state is not None:
                await drive.loop.checkpoints.restore(CHECKPOINTS, self._state)
            await drive.run()
        except Exception as error:  # what the control plane raises is a result, and told where it is missed
            self._decided.append(Event(self.clock.now(), "run.failed", {"error": str(error)}))

    def _save(self, state: SchedulerState) -> DriverState:
        self.saved = self._all_saved[state.version] = state
        return DriverState()

    async def _rewind(self) -> Kept:
        version = await self._back.get()
        if version not in self._all_saved:
            return Kept()
        self.saved = self._all_saved[version]
        return Kept(CHECKPOINTS, self.saved)

    async def _go_back(self, event: Event) -> None:
        """The trainer dies, and the pipeline with it. Then what the engines were being told comes to its end, and what
        happened once may happen again."""
        version = int(event.data["version"])  # type: ignore[arg-type]
        self._trainer.die()
        await self._settle(event)
        for gate in self._gates.values():
            gate.set()
        self._gates.clear()
        self._engine.next_row = version
        self._back.put_nowait(version)
        await self._settle(event)

    def _hear(self, event: Event) -> None:
        if event.name in DECISIONS:
            self._decided.append(event)

    async def _settle(self, event: Event) -> None:
        """Let all tasks run that can, and time pass up to the event. Not between reports: they may come together."""
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
            case "reward.end":
                self._rewards.answer(recorded.data)
            case "member.retry":
                self.clock.fire(f"retry {recorded.data['group']}.{recorded.data['member']}")
            case "step.end":
                self._gates[f"row {recorded.data['step']}"].set()

    def _end_episode(self, id: str) -> None:
        if (found := self._dispatcher.player(id)) is not None:
            lease, link = found
            link.receive(Packet({id: self._report(lease)}, confirmed=[id]))

    def _report(self, lease: Lease) -> Report:
        awaited = self._awaited.get(lease.id, ())
        if (end := self._ends.get(lease.id)) is not None:
            return report(lease, end, awaited)
        tried, history, number = lease.id.partition("~")
        again = f"{tried.rpartition('.')[0]}.{lease.tries + 1}{history}{number}"
        return unseen_report(lease, failed=again in self._tried, awaited=awaited)

    # -------------------------------------------------------------------------------------------- handing over

    async def _hand_over(self, event: Event) -> None:
        data: Any = event.data
        match event.name:
            case "host.attach":
                self._hosts[data["host"]] = self._dispatcher.attach(discard, data["capacity"])
            case "host.detach":
                self._dispatcher.detach(self._hosts.pop(data["host"]))
            case "concurrency.begin" | "concurrency.change":
                self._dispatcher.limit = data["limit"]
            case "phase.end" if data["phase"] == "train":
                await self._let(event, f"train {data['step']}")
            case "weights.publish" | "weights.stage" | "weights.commit":
                await self._let(event, f"{event.name} {int(Version.of(data.get('history', 0), data['version']))}")
            case "checkpoint.saved":
                await self._let(event, f"save {Path(data['folder']).name}")
            case "run.back":
                await self._go_back(event)
            case "run.stop":
                self._drive.stop()
                await self._settle(event)
            case "run.failed" if self._driving is not None:
                self._driving.cancel()  # as whatever failed outside has ended the drive
                await self._settle(event)

    async def _let(self, event: Event, gate: str) -> None:
        self._gates[gate].set()
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


@dataclass(slots=True)
class Replayed:
    decisions: int = 0
    steps: int = 0
    stretches: int = 0
    difference: Difference | None = None


def replay(job: Job, source: TaskSource, events: Sequence[Event]) -> Replayed:
    """Replay all of a run; ends at the first difference. `job` is what the run has come to be."""
    _check(events)
    result = Replayed()
    state: SchedulerState | None = None
    for its_job, stretch in stretches(job, events):
        player = Player(its_job, source, stretch, state)
        difference = run_virtual(lambda _, player=player: player.play(), player.clock)  # type: ignore[misc]
        result.decisions += player.compared
        if difference is not None:
            difference.decision = result.decisions + 1
            result.difference = difference
            return result
        result.steps += sum(event.name == "step.end" for event in stretch)
        result.stretches += 1
        state = player.saved
    return result


def stretches(job: Job, events: Sequence[Event]) -> list[tuple[Job, list[Event]]]:
    """The run cut at every resume, each part with the job of its time: a resume says what it changed."""
    cuts = [0, *(n for n, event in enumerate(events) if event.name == "run.resume" and n > 1), len(events)]
    found: list[tuple[Job, list[Event]]] = []
    for first, last in reversed(list(pairwise(cuts))):
        found.insert(0, (job, list(events[first:last])))
        if events[first].name == "run.resume":
            job = _before(job, events[first].data["changed"])
    return found


def _before(job: Job, changed: Any) -> Job:
    document = job.model_dump(mode="json")
    for key, (old, _) in changed.items():
        *path, name = key.split(".")
        section = document
        for part in path:
            section = section.setdefault(part, {})
        section[name] = old
    return Job.model_validate_json(json.dumps(document))


def _check(events: Sequence[Event]) -> None:
    names = {event.name for event in events}
    if "host.attach" not in names or any(e.name == "trajectory.end" and "version" not in e.data for e in events):
        raise RunFolderError(
            "events.jsonl does not hold what a replay needs: the run has not begun to play, or was recorded by an "
            "earlier version of Rollweave"
        )


def _show(event: Event | None) -> str:
    return "nothing" if event is None else f"{event.name} {json.dumps(event.data, default=str)}"
