"""QueueMeter: the queue of complete groups between rollout and trainer, seen from its three sides.

    length_seen               how many groups were there when the trainer asked
    wait_seconds              how long what it got had been lying there, complete
    trainer_blocked_seconds   how long it had to wait for the rest

A long queue and long waits: the trainer is the bottleneck and samples grow stale in line. An empty queue and a blocked
trainer: rollout is.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean


class QueueMeter:
    def __init__(self) -> None:
        self.complete: dict[int, float] = {}
        """Groups in the queue, by when they were complete."""
        self.trainer_asked: float | None = None
        """Since when the trainer waits, if it does."""
        self._clear()

    def put(self, group: int, time: float) -> None:
        self.complete[group] = time

    def leave(self, group: int) -> None:
        """It went another way: filtered, too old, surplus."""
        self.complete.pop(group, None)

    def ask(self, time: float) -> None:
        self.trainer_asked = time
        self._seen.append(len(self.complete))

    def serve(self, groups: Iterable[int], time: float) -> None:
        self._waits += [time - self.complete.pop(group) for group in groups if group in self.complete]

    def answered(self, time: float) -> None:
        if self.trainer_asked is not None:
            self._blocked += time - self.trainer_asked
            self.trainer_asked = None

    def sample(self) -> dict[str, float]:
        """Of the batches since the last sample."""
        row = {"queue/trainer_blocked_seconds": self._blocked}
        if self._seen:
            row["queue/length_seen"] = fmean(self._seen)
        if self._waits:
            row |= {"queue/wait_seconds": fmean(self._waits), "queue/wait_seconds_max": max(self._waits)}
        self._clear()
        return row

    def _clear(self) -> None:
        self._seen: list[int] = []
        self._waits: list[float] = []
        self._blocked = 0.0
