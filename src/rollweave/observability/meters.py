"""Meters that turn events into the numbers of a metrics row.

QueueMeter   the queue of complete groups between rollout and trainer
SlotMeter    free slots, and whether the staleness bound kept them free
RewardMeter  how long rewards took that were computed after their episode
CallMeter    what the calls of reward functions elsewhere took
ServedMeter  which pool served which task
TokenBooks   how every sampled token ended
LoopTime     what the run's loop is doing now, and how much time each phase has taken
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from rollweave.observability.catalogue import part


class QueueMeter:
    """Measures the queue of complete groups between rollout and trainer.

        length_seen               how many groups were there when the trainer asked
        wait_seconds              how long the groups that it got had been there
        trainer_blocked_seconds   how long the trainer waited for the rest

    With a long queue and long waits the trainer is the bottleneck, and groups become stale in the queue. With an empty
    queue and a blocked trainer, rollout is the bottleneck.
    """

    def __init__(self) -> None:
        self.complete: dict[int, float] = {}
        """The groups in the queue, with the time at which each was complete."""
        self.trainer_asked: float | None = None
        """The time since which the trainer waits, if it waits."""
        self._clear()

    def put(self, group: int, time: float) -> None:
        self.complete[group] = time

    def leave(self, group: int) -> None:
        """The group leaves the queue untrained: it was filtered, too old or surplus."""
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
        """The numbers of the batches since the last sample."""
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
    """Measures how many slots were free, and whether the staleness bound kept them free.

    The scheduler admits at once everything that the bound allows. So a slot that is free while no episode waits for one
    is free because the bound does not admit another group: that is back-pressure on the rollout. The meter is fed with
    the dispatcher's counts whenever an episode begins or ends.
    """

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
        """For how long slots have been free without a break while the bound admits no group."""
        return 0.0 if self._refused_since is None else now - self._refused_since

    @property
    def _refused(self) -> bool:
        return self.free > 0 and self.in_line == 0

    def sample(self, now: float) -> dict[str, float]:
        """The numbers of the time since the last sample."""
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


class CallMeter:
    """Measures the calls of reward functions that are not local, by reward. Every try of every call is in it once:
    `calls + retries + hedges` is the number of tries, and so is the sum of the `tries/<end>`."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self._instances: dict[tuple[str, str], tuple[float, float]] = {}
        """By reward and pool: busy and paid seconds, the last that are known."""
        self._clear()

    def begin(self, rewards: Iterable[str]) -> None:
        for name in rewards:
            self._in_flight[name] += 1
            self._most[name] = max(self._most[name], self._in_flight[name])

    def end(self, rewards: Iterable[str]) -> None:
        self._in_flight.subtract(rewards)

    def add(self, calls: Mapping[str, Mapping[str, Any]]) -> None:
        """The calls of one trajectory."""
        for name, call in calls.items():
            if not call["tries"]:  # given up before the first one
                continue
            sums = self._sums.setdefault(name, Counter())
            sums["calls"] += 1
            sums["hedges"] += call["hedges"]
            sums["retries"] += sum(call["tries"].values()) - 1 - call["hedges"]
            for end, tries in call["tries"].items():
                sums[f"tries/{end}"] += tries
            for what in ("cold_starts", "function_seconds", "cost", "breaker_opened", "breaker_seconds"):
                sums[what] += call[what]
            self._seconds.setdefault(name, []).append(call["seconds"])
            if (used := call["instances"]) is not None:
                self._use(name, used)

    def _use(self, name: str, used: Mapping[str, Any]) -> None:
        place, now = (name, used["pool"]), (used["busy"], used["paid"])
        before = self._instances.get(place, (0.0, 0.0))
        if now > before:  # answers overtake each other
            self._instances[place] = now
            busy, paid = self._used.get(name, (0.0, 0.0))
            self._used[name] = (busy + now[0] - before[0], paid + now[1] - before[1])

    def sample(self) -> dict[str, float]:
        """Of the calls that ended since the last sample."""
        row: dict[str, float] = {}
        for name, sums in self._sums.items():
            key = f"function/{part(name)}"
            row |= {f"{key}/{what}": value for what, value in sums.items()}
            row |= {f"{key}/seconds_p{q}": float(np.percentile(self._seconds[name], q)) for q in (50, 90, 99)}
            row[f"{key}/in_flight_max"] = self._most[name]
            busy, paid = self._used.get(name, (0.0, 0.0))
            if paid:
                row[f"{key}/utilisation"] = busy / paid
        self._clear()
        return row

    def _clear(self) -> None:
        self._sums: dict[str, Counter[str]] = {}
        self._seconds: dict[str, list[float]] = {}
        self._used: dict[str, tuple[float, float]] = {}
        self._most = Counter({name: count for name, count in self._in_flight.items() if count > 0})


class RewardMeter:
    """Measures rewards that are computed after their episode. A run without them gets no numbers."""

    def __init__(self) -> None:
        self._any = False
        self._clear()

    def begin(self) -> None:
        self._any = True

    def end(self, seconds: float, threads_left: int) -> None:
        self._seconds.append(seconds)
        self._counts["threads_left"] += threads_left

    def again(self) -> None:
        self._counts["again"] += 1

    def late(self, threads_left: int) -> None:
        self._counts["late"] += 1
        self._counts["threads_left"] += threads_left

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


class ServedMeter:
    """Counts which pool served which task. A run with one pool gets no numbers."""

    def __init__(self) -> None:
        self._pools: set[str] = set()
        self._places: dict[str, tuple[str, str]] = {}
        """By attempt that is under way: its task and its pool."""
        self._clear()

    def route(self, attempt: str, task: str, pool: str, tried: bool) -> None:
        self._pools.add(pool)
        self._places[attempt] = (task, pool)
        self._tried += tried

    def end(self, attempt: str, tokens: int) -> None:
        if (place := self._places.pop(attempt, None)) is not None:
            self._trajectories[place] += 1
            self._tokens[place] += tokens

    def drop(self, attempt: str) -> None:
        """It does not count."""
        self._places.pop(attempt, None)

    def sample(self) -> dict[str, float]:
        """Of the trajectories that ended since the last sample."""
        row: dict[str, float] = {}
        if len(self._pools) > 1:
            for name, counts in (("trajectories", self._trajectories), ("tokens", self._tokens)):
                row |= {f"served/{name}/{part(task)}/{part(pool)}": n for (task, pool), n in sorted(counts.items())}
            row["served/tried"] = self._tried
        self._clear()
        return row

    def _clear(self) -> None:
        self._trajectories: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._tried = 0


TRAINED = "trained"
FILTERED = "filtered"
LOST = "lost"
CAUSES = ("filtered", "surplus", "stale", "aborted", "infra-failed", "reward-failed", LOST)
"""The causes for which tokens are not trained: the ledger's ends of attempts, and `lost` for tokens of no attempt."""


class TokenBooks:
    """Counts how every token that the engines sampled ended.

        generated = trained + wasted + evaluation + in flight

    The engines count the generated tokens. The ledger books trained and wasted tokens on attempts. Tokens of
    evaluations belong to no attempt. The rest is in flight: in running episodes and in complete groups that the
    trainer has not consumed yet.

    Some tokens reach no attempt: those of a restarted turn, of an answer after its deadline, of a dead worker. Their
    cause is `lost`. An engine itself counts the tokens that it does not deliver. Tokens lost with an engine or a host
    show when nothing is in flight and tokens are missing, and are booked then (`settle`).
    """

    def __init__(self) -> None:
        self.generated = 0
        self.evaluation = 0
        self.booked: Counter[str] = Counter()
        """Booked tokens, by the end of their attempt, or `lost`."""
        self._unbooked: dict[str, int] = {}
        """Tokens of finished episodes whose attempts the ledger has not ended yet."""
        self._last: dict[str, int] = {}
        self._marks: dict[int, dict[str, int]] = {}
        """By version: the totals at its checkpoint."""

    def sampled(self, tokens: int, thrown_away: int) -> None:
        """Engines sampled these tokens, and discarded some of them themselves."""
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

    def mark(self, version: int) -> None:
        """A checkpoint is made, after the row of its last step."""
        self._marks[version] = dict(self._last)

    def go_back(self, version: int) -> None:
        """To a checkpoint. The rows since then are gone, so the next one has what they had."""
        self._last = dict(self._marks.get(version, {}))

    def undo(self, ends: Mapping[str, int], aborted: int, open: Mapping[str, int]) -> None:
        """What was booked since the checkpoint, by end, is booked as aborted now, but for attempts that are open
        again."""
        self.booked.subtract(ends)
        self.booked["aborted"] += aborted
        self._unbooked |= open

    def settle(self) -> None:
        """Book missing tokens as lost. Called when nothing is being generated."""
        missing = self.in_flight - sum(self._unbooked.values())
        if missing >= 0:
            self.booked[LOST] += missing
        else:
            # A dead engine had sampled and delivered these tokens after its counters were read for the last time.
            self.generated -= missing

    def sample(self) -> dict[str, float]:
        """The numbers since the last sample; `in_flight` is the present value, the share is over the whole run."""
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
    """Measures the phases of the run's loop. Phases may overlap; time counts for the phase that began last."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._open: list[tuple[str, float]] = []
        self._at = 0.0

    @property
    def doing(self) -> tuple[str, float] | None:
        """The present phase, and the time at which it began."""
        return self._open[-1] if self._open else None

    def begin(self, phase: str, time: float) -> None:
        self._advance(time)
        self._open.append((phase, time))

    def end(self, phase: str, time: float) -> None:
        self._advance(time)
        self._open = [one for one in self._open if one[0] != phase]

    def stop(self, time: float) -> None:
        """No phase goes on."""
        self._advance(time)
        self._open = []

    def totals(self, now: float) -> dict[str, float]:
        """Seconds of each phase since the start."""
        self._advance(now)
        return dict(self._totals)

    def _advance(self, time: float) -> None:
        if self._open:
            self._totals[self._open[-1][0]] += time - self._at  # type: ignore[assignment]
        self._at = time
