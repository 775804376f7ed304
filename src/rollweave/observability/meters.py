"""QueueMeter: the queue of complete groups between rollout and trainer, seen from its three sides.

    length_seen               how many groups were there when the trainer asked
    wait_seconds              how long what it got had been lying there, complete
    trainer_blocked_seconds   how long it had to wait for the rest

A long queue and long waits: the trainer is the bottleneck and samples grow stale in line. An empty queue and a blocked
trainer: rollout is.

SlotMeter: how much of the room for episodes stood empty, and whether the staleness bound kept it so.

The scheduler admits whatever the bound allows at once. A slot that is free while no episode is in line is therefore
free because the bound refused to start another: the producer's back-pressure.

RewardMeter: how long rewards took that were computed after their episode.

TokenBooks: what became of every token the engines sampled.

    generated = trained + wasted + evaluation + in flight

Generated is what engines count, trained and wasted are booked on attempts by the ledger, evaluation belongs to no
attempt. In flight is the rest: in running episodes and in complete groups that nobody has consumed yet.

Some tokens reach no attempt at all: a turn that was begun again, an answer that came after its deadline, whatever was
lost with a dead worker. They are the cause `lost`. What an engine gives to nobody it counts itself; what it cannot
know (its own death, a dead host) shows when nothing is in flight and something is missing, and is booked then.

LoopTime: what the run's loop is doing now, and how long it has done what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import Literal


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


class SlotMeter:
    """Fed with what the dispatcher says whenever an episode begins or ends."""

    def __init__(self) -> None:
        self._at: float | None = None
        self.free = self.slots = self.in_line = 0
        self._refused_since: float | None = None
        self._clear()

    def change(self, time: float, free: int, slots: int, in_line: int) -> None:
        self._advance(time)
        self.free, self.slots, self.in_line = free, slots, in_line
        if not self._refused:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = time

    def refused_for(self, now: float) -> float:
        """How long slots have been free without a break, though nobody may begin."""
        return 0.0 if self._refused_since is None else now - self._refused_since

    @property
    def _refused(self) -> bool:
        return self.free > 0 and self.in_line == 0

    def sample(self, now: float) -> dict[str, float]:
        """Of the time since the last sample."""
        self._advance(now)
        seconds, free, room, pressed = self._seconds, self._free_seconds, self._room_seconds, self._pressed_seconds
        self._clear()
        return {
            "idle/environments": free / room if room else 0.0,
            "queue/free_slots": free / seconds if seconds else float(self.free),
            "queue/backpressure_seconds": pressed,
        }

    def _clear(self) -> None:
        self._seconds = self._free_seconds = self._room_seconds = self._pressed_seconds = 0.0

    def _advance(self, time: float) -> None:
        passed = 0.0 if self._at is None else time - self._at
        self._at = time
        self._seconds += passed
        self._free_seconds += passed * self.free
        self._room_seconds += passed * self.slots
        if self._refused:
            self._pressed_seconds += passed


class RewardMeter:
    """Silent in runs whose rewards take no time."""

    def __init__(self) -> None:
        self._any = False
        self._clear()

    def begin(self) -> None:
        self._any = True

    def end(self, seconds: float, threads_left: int) -> None:
        self._seconds.append(seconds)
        self._counts["threads_left"] += threads_left

    def count(self, what: Literal["again", "late"]) -> None:
        self._counts[what] += 1

    def sample(self) -> dict[str, float]:
        """Of the rewards that came since the last sample."""
        if not self._any:
            return {}
        row: dict[str, float] = {f"scoring/{what}": self._counts[what] for what in ("again", "late", "threads_left")}
        if self._seconds:
            row |= {"scoring/seconds_mean": fmean(self._seconds), "scoring/seconds_max": max(self._seconds)}
        self._clear()
        return row

    def _clear(self) -> None:
        self._seconds: list[float] = []
        self._counts: Counter[str] = Counter()


TRAINED = "trained"
FILTERED = "filtered"
LOST = "lost"
CAUSES = ("filtered", "surplus", "stale", "aborted", "infra-failed", "reward-failed", LOST)
"""Where tokens end that are not trained: the ledger's ends of attempts, and what reached no attempt."""


class TokenBooks:
    def __init__(self) -> None:
        self.generated = 0
        self.evaluation = 0
        self.booked: Counter[str] = Counter()
        """By where attempts ended, and `lost`."""
        self._unbooked: dict[str, int] = {}
        """Of finished episodes that the ledger has not ended yet."""
        self._last: dict[str, int] = {}

    def sampled(self, tokens: int, thrown_away: int) -> None:
        """Engines sampled these; some of them they threw away themselves."""
        self.generated += tokens
        self.booked[LOST] += thrown_away

    def finish(self, attempt: str, tokens: int) -> None:
        self._unbooked[attempt] = tokens

    def book(self, attempt: str, end: str, tokens: int) -> None:
        self._unbooked.pop(attempt, None)
        self.booked[end] += tokens

    @property
    def in_flight(self) -> int:
        return self.generated - self.evaluation - self.booked.total()

    def settle(self) -> None:
        """Nothing is being generated: what is neither booked nor in a finished episode is lost."""
        missing = self.in_flight - sum(self._unbooked.values())
        if missing >= 0:
            self.booked[LOST] += missing
        else:
            # An engine that died had sampled this since it was last asked: it was delivered, but never counted.
            self.generated -= missing

    def sample(self) -> dict[str, float]:
        """Of the time since the last sample; `in_flight` as it is now, the share over the whole run."""
        totals = {"generated": self.generated, "evaluation": self.evaluation}
        totals |= {f"wasted/{cause}": self.booked[cause] for cause in CAUSES}
        row: dict[str, float] = {f"tokens/{name}": total - self._last.get(name, 0) for name, total in totals.items()}
        self._last = totals
        trained = self.booked[TRAINED]
        wasted = self.booked.total() - trained
        row["tokens/in_flight"] = self.in_flight
        row["tokens/wasted_share"] = wasted / (trained + wasted) if trained + wasted else 0.0
        return row


class LoopTime:
    """Phases may overlap or lie within each other; time counts for the one that began last."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._open: list[tuple[str, float]] = []
        self._at = 0.0

    @property
    def doing(self) -> tuple[str, float] | None:
        """The phase, and when it began."""
        return self._open[-1] if self._open else None

    def begin(self, phase: str, time: float) -> None:
        self._advance(time)
        self._open.append((phase, time))

    def end(self, phase: str, time: float) -> None:
        self._advance(time)
        self._open = [one for one in self._open if one[0] != phase]

    def totals(self, now: float) -> dict[str, float]:
        """Seconds by phase since the start."""
        self._advance(now)
        return dict(self._totals)

    def _advance(self, time: float) -> None:
        if self._open:
            self._totals[self._open[-1][0]] += time - self._at  # type: ignore[assignment]
        self._at = time
