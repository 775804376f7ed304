"""Records events: every decision of the control plane is an event with its inputs.

    recorder = Recorder(clock.now, [EventFile(run / "events.jsonl")])
    recorder.emit("group.admit", group=17, task="frozen_lake/train/17", version=3)

The recorder stamps each event with the time of the clock it was given, and passes it to its sinks. A sink is any
callable that takes an Event: `EventFile` in a run, `some_list.append` in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rollweave.observability.jsonl import Appender, Json, read

FLUSH_EVERY = 256
"""Events between flushes: a busy run emits thousands a second, and a flush is a system call."""

FLUSH_ON = frozenset({
    "batch.ready", "eval.end", "checkpoint.saved",
    "run.start", "run.back", "run.end", "worker.died", "worker.restarted", "wait.slow",
})  # fmt: skip
"""Events after which all events so far must be on disk: the end of a step, and events that a person looks for."""


NOT_UNDONE = ("run.", "engine.", "fleet.", "host.", "worker.", "node.", "driver.")
"""How the names of events begin that stay true when the run goes back."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, when, and with which inputs."""

    time: float
    name: str
    data: dict[str, Json] = field(default_factory=dict)


Sink = Callable[[Event], None]


class Emitter(Protocol):
    """All that the rest of the system knows of this package."""

    def emit(self, name: str, /, **data: Json) -> None: ...


class Recorder:
    """Stamps events with the time and passes them to its sinks, in the order they were emitted."""

    def __init__(self, now: Callable[[], float], sinks: Iterable[Sink] = ()) -> None:
        self.now = now
        self.sinks = list(sinks)

    def emit(self, name: str, /, **data: Json) -> None:
        event = Event(self.now(), name, data)
        for sink in self.sinks:
            sink(event)


class MemoryRecorder(Recorder):
    """Keeps all events in memory, for tests and for runs on the virtual clock."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.events: list[Event] = []
        super().__init__(now, [self.events.append])

    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


class EventFile(Appender):
    """The sink that writes events.jsonl."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, FLUSH_EVERY)

    def __call__(self, event: Event) -> None:
        self.append({"time": round(event.time, 6), "name": event.name, "data": event.data})
        if event.name in FLUSH_ON:
            self.flush()


def surviving(events: Iterable[Event]) -> list[Event]:
    """Without the work that was undone when the run went back to a checkpoint: what came between both. Of engines,
    hosts and machines all stays, because they lived on."""
    kept: list[Event] = []
    for event in events:
        if event.name == "run.back":
            first = 1 + max((n for n, one in enumerate(kept) if _is_checkpoint(one, event)), default=-1)
            kept[first:] = [one for one in kept[first:] if one.name.startswith(NOT_UNDONE)]
        kept.append(event)
    return kept


def _is_checkpoint(event: Event, back: Event) -> bool:
    """Whether that is where the run went back to."""
    return event.name == "checkpoint.begin" and event.data["version"] == back.data["version"]


def read_events(path: Path) -> list[Event]:
    """Read the events that an `EventFile` wrote, in order."""
    return [Event(row["time"], row["name"], row["data"]) for row in read(path).rows if row.keys() >= {"name", "data"}]
