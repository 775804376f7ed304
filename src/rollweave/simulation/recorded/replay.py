"""`rollweave replay RUN`: the recorded run's control plane once more, decision by decision.

The events of a run hold what came from outside (episodes that ended, train steps, weights that arrived, hosts that
came and went) and what the control plane made of it (groups admitted, batches formed, work given up, books). The
replay hands the former to the very same scheduler, dispatcher and pipeline on the virtual clock, in the recorded
order, and compares the latter event by event. So a run is a test case: if code that decides was changed since, the
first decision that comes out differently is shown with what led to it.

A resumed run is replayed stretch by stretch; each goes on from the state that its own replay would have saved.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rollweave.clock import run_virtual
from rollweave.config.job import Job
from rollweave.errors import RunFolderError
from rollweave.observability.events import Event
from rollweave.rollout.state import SchedulerState
from rollweave.simulation.recorded.player import Player
from rollweave.tasks import TaskSource

INPUTS_SHOWN = 6


@dataclass(slots=True)
class Difference:
    """The first place where recording and replay part."""

    decision: int
    """Its number, counted from 1."""
    recorded: Event
    replayed: Event | None
    before: list[Event] = field(default_factory=list)
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
        parting = run_virtual(lambda _, player=player: player.play(), player.clock)  # type: ignore[misc]
        result.decisions += player.compared
        if parting is not None:
            place = parting.place
            before = stretch[max(0, place - INPUTS_SHOWN) : place]
            result.difference = Difference(result.decisions + 1, stretch[place], parting.replayed, before)
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
