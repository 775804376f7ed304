"""What the driver knows about its workers' deaths: each is an event, each is counted, and there is an end to it.

A worker that was killed is started again. One that dies again and again without a train step in between was not
unlucky: whatever kills it will kill the next one too, and the run ends with its cause.
"""

from __future__ import annotations

from collections import Counter

from rollweave.errors import WorkerDied
from rollweave.observability.events import Emitter

MOST_DEATHS = 5
"""Of one worker, without a completed train step in between."""


class Restarts:
    def __init__(self, recorder: Emitter, most_deaths: int = MOST_DEATHS) -> None:
        self._recorder = recorder
        self._most_deaths = most_deaths
        self._deaths: Counter[str] = Counter()
        self.restarted: Counter[str] = Counter()
        """By worker, since the beginning."""

    def died(self, death: WorkerDied) -> None:
        """Write a death down. Raises it when it is one too many."""
        self._recorder.emit("worker.died", worker=death.worker, cause=str(death))
        self._deaths[death.worker] += 1
        if (deaths := self._deaths[death.worker]) >= self._most_deaths:
            raise WorkerDied(
                f"{deaths} times without a completed train step in between, {death}", death.worker
            ) from death

    def back(self, death: WorkerDied, seconds: float) -> None:
        """The dead worker's successor works, that long after its death."""
        self.restarted[death.worker] += 1
        self._recorder.emit("worker.restarted", worker=death.worker, seconds=seconds, cause=str(death))

    def progress(self) -> None:
        """A train step was completed."""
        self._deaths.clear()
