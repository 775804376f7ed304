"""Measures where the time of a step goes, and for which share of it each pool stood idle.

`StepClock` adds up what the loop spent in each phase; `BusyTime` how long a pool worked at all; `IdleMeter`
turns any growing count of busy seconds into the idle share since it was last asked. An engine counts its own
busy seconds (`EngineStats.busy_seconds`), the trainer's are counted here:

    with clock.phase("train"), trainer_busy.busy():
        await trainer.finish()
    metrics |= clock.finish()
    metrics["idle/trainer"] = trainer_idle.sample(trainer_busy.seconds())
    metrics["idle/engine"] = engine_idle.sample((await engine.stats()).busy_seconds)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Phase = Literal["get_batch", "train", "sync_exposed", "recompute", "eval", "permit"]
PHASES: tuple[Phase, ...] = get_args(Phase)

Now = Callable[[], float]


class StepClock:
    """Seconds per phase of the current step. A phase that crosses a step's end is split there."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._began = now()
        self._spent: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._open: list[tuple[Phase, float]] = []

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        self._open.append((name, self._now()))
        try:
            yield
        finally:
            # The newest of this name: phases of different tasks may end in any order.
            index = max(i for i, (open_name, _) in enumerate(self._open) if open_name == name)
            self._spent[name] += self._now() - self._open.pop(index)[1]

    def add(self, name: Phase, seconds: float) -> None:
        """Time that was measured elsewhere."""
        self._spent[name] += seconds

    def finish(self) -> dict[str, float]:
        """The step's times as metrics (every phase, zero or not); the next step begins now."""
        now = self._now()
        for name, since in self._open:
            self._spent[name] += now - since
        self._open = [(name, now) for name, _ in self._open]
        times = {"time/step": now - self._began} | {f"time/{name}": spent for name, spent in self._spent.items()}
        self._began = now
        self._spent = dict.fromkeys(PHASES, 0.0)
        return times


class BusyTime:
    """Seconds during which at least one piece of work was running."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._done = 0.0
        self._running = 0
        self._since = 0.0

    @contextmanager
    def busy(self) -> Iterator[None]:
        if self._running == 0:
            self._since = self._now()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._done += self._now() - self._since

    def seconds(self) -> float:
        return self._done + (self._now() - self._since if self._running else 0.0)


class IdleMeter:
    """The idle share between two samples of a count of busy seconds."""

    def __init__(self, now: Now, busy_seconds: float = 0.0) -> None:
        self._now = now
        self._at = now()
        self._busy = busy_seconds

    def sample(self, busy_seconds: float, workers: int = 1) -> float:
        """The share of the time since the last sample in which the pool, of so many workers, did nothing: 0 to 1."""
        now = self._now()
        # A counter that went back belongs to a worker that was started again: it counts from zero.
        busy = busy_seconds - self._busy if busy_seconds >= self._busy else busy_seconds
        capacity = (now - self._at) * workers
        self._at, self._busy = now, busy_seconds
        return min(1.0, max(0.0, 1.0 - busy / capacity)) if capacity > 0 else 0.0
