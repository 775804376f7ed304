"""The log files of one process's stretch of a run, opened where the stretch begins.

A resumed run appends to the files of the run; a checkpoint remembers how long they were (`marks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollweave.config.job import LoggingConfig
from rollweave.observability.events import Event, EventFile, Recorder, read_events
from rollweave.observability.metrics import MetricsWriter, read_metrics
from rollweave.observability.transcripts import Decode, TranscriptWriter, spread
from rollweave.pipelines.checkpoints import LogMark
from rollweave.runs.folder import RunFolder
from rollweave.runs.resume import LOGS, Start, mark
from rollweave.trajectory import Trajectory


class Logbook:
    def __init__(
        self, folder: RunFolder, config: LoggingConfig, start: Start, now: Callable[[], float], decode: Decode
    ) -> None:
        self._folder = folder
        self._transcripts_per_step = config.transcripts_per_step
        first = start.version if start.resumed else None
        self.metrics = MetricsWriter(folder.path, tensorboard=config.tensorboard, resumed_at=first)
        self._events = EventFile(folder.events)
        self._transcripts = TranscriptWriter(folder.path, decode)
        self._now = now
        self._began = now() - start.driver.elapsed
        self.recorder = Recorder(self.elapsed, [self._events])

    def elapsed(self) -> float:
        """Seconds since the run began, those of earlier processes included."""
        return self._now() - self._began

    def trajectories(self, step: int, trajectories: list[Trajectory]) -> None:
        self._transcripts.write(step, spread(trajectories, self._transcripts_per_step))

    def earlier(self) -> tuple[list[Event], list[dict[str, Any]]]:
        """Events and rows of metrics from before."""
        self._events.flush()
        return read_events(self._folder.events), read_metrics(self._folder.path).rows

    def marks(self) -> dict[str, LogMark]:
        """Where each file ends now."""
        self._events.flush()
        return {name: mark(self._folder.path / name) for name in LOGS}

    def close(self) -> None:
        self.recorder.sinks.clear()  # a timer that was not cancelled may still speak
        self.metrics.close()
        self._events.close()
        self._transcripts.close()
