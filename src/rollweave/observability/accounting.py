"""Accountant: listens to a run's events and says, once a step, where tokens, time and episodes went.

It is a sink of the recorder like the file of events, so the scheduler needs no counters of its own, and a recorded
run gives the same numbers as a living one:

    accountant = Accountant()
    recorder.sinks.append(accountant)
    row = accountant.sample(recorder.now())

What it knows of open work (which groups wait for which members) also answers `rollweave status`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollweave.observability.bias import DurationBias
from rollweave.observability.events import Event
from rollweave.observability.meters import (
    FILTERED,
    LOST,
    TRAINED,
    LoopTime,
    QueueMeter,
    RewardMeter,
    SlotMeter,
    TokenBooks,
)
from rollweave.observability.waits import OpenWork

BY_ITSELF = frozenset({"finished", "truncated"})
"""Outcomes of episodes that were not cut short."""

FAILURES = frozenset({"env_failed", "timed_out"})
"""Outcomes that say nothing about how long an episode is."""


class Accountant:
    def __init__(self) -> None:
        self.tokens = TokenBooks()
        self.bias = DurationBias()
        self.queue = QueueMeter()
        self.slots = SlotMeter()
        self.rewards = RewardMeter()
        self.work = OpenWork()
        self.loop = LoopTime()
        self.restarts: Counter[str] = Counter()
        self._sync_seconds = 0.0
        self._evaluating = False
        self._listeners = {
            "episode.begin": self._episode_begin,
            "episode.end": self._episode_end,
            "trajectory.end": self._trajectory_end,
            "reward.begin": self._reward_begin,
            "reward.end": self._reward_end,
            "reward.again": lambda time, data: self.rewards.again(),
            "reward.late": lambda time, data: self.rewards.late(data["threads_left"]),
            "attempt.end": self._attempt_end,
            "task.end": self._task_end,
            "group.admit": self._group_admit,
            "group.complete": self._group_complete,
            "batch.ready": self._batch_ready,
            "phase.begin": self._phase_begin,
            "phase.end": self._phase_end,
            "checkpoint.begin": lambda time, data: self.loop.begin("save", time),
            "checkpoint.saved": lambda time, data: self.loop.end("save", time),
            "weights.publish": self._sync,
            "weights.stage": self._sync,
            "weights.commit": self._sync,
            "eval.begin": self._eval_begin,
            "eval.end": self._eval_end,
            "worker.restarted": self._worker_restarted,
        }

    def __call__(self, event: Event) -> None:
        listener = self._listeners.get(event.name)
        if listener is not None:
            listener(event.time, event.data)

    @property
    def quiet(self) -> bool:
        """No episode is played, so nothing is being generated."""
        return not self.work.playing and not self._evaluating

    def sample(self, now: float) -> dict[str, float]:
        """The row of everything since the last one."""
        row = {
            **self.tokens.sample(),
            **self.bias.sample(now),
            **self.queue.sample(),
            **self.slots.sample(now),
            **self.rewards.sample(),
            **{f"restarts/{worker}": count for worker, count in self.restarts.items()},
            "time/sync": self._sync_seconds,
        }
        self._sync_seconds = 0.0
        return row

    def resume(self, earlier: Iterable[Event], rows: Sequence[Mapping[str, Any]]) -> None:
        """Go on where an earlier process of the run stopped: its events, and the counts of its engines."""
        last = 0.0
        for event in earlier:
            self(event)
            last = event.time
        self.tokens.generated = sum(int(row.get("tokens/generated") or 0) for row in rows)
        self.tokens.booked[LOST] = sum(int(row.get(f"tokens/wasted/{LOST}") or 0) for row in rows)
        for episode in self.work.end_all():
            self.bias.end(episode, last, 0, natural=False, failed=True)
        self._evaluating = False
        self.sample(last)  # those rows are written
        self.tokens.settle()  # what was being played is gone: lost in the first row to come

    # ------------------------------------------------------------------------------------------------ listeners

    def _episode_begin(self, time: float, data: dict[str, Any]) -> None:
        self.work.begin(data["id"], data["group"], time)
        self.slots.change(time, data["free"], data["slots"], data["in_line"])
        if data["group"] >= 0:  # evaluations stand outside
            self.bias.begin(data["id"], time)

    def _episode_end(self, time: float, data: dict[str, Any]) -> None:
        self.work.end(data["id"])
        self.slots.change(time, data["free"], data["slots"], data["in_line"])

    def _trajectory_end(self, time: float, data: dict[str, Any]) -> None:
        outcome = data["outcome"]
        self.bias.end(data["id"], time, data["tokens"], outcome in BY_ITSELF, outcome in FAILURES)
        self.tokens.finish(data["id"], data["tokens"])

    def _reward_begin(self, time: float, data: dict[str, Any]) -> None:
        self.rewards.begin()
        self.work.begin_scoring(data["id"], data["group"], data["rewards"], time)

    def _reward_end(self, time: float, data: dict[str, Any]) -> None:
        if (reward := self.work.end_scoring(data["id"])) is not None:
            self.rewards.end(time - reward.since, data["threads_left"])

    def _attempt_end(self, time: float, data: dict[str, Any]) -> None:
        self.work.end_scoring(data["id"])  # if it was given up
        self.tokens.book(data["id"], data["end"], data["tokens"])
        if data["end"] == TRAINED:
            self.bias.train(data["id"])
        else:
            self.bias.throw_away(data["id"], filtered=data["end"] == FILTERED)

    def _task_end(self, time: float, data: dict[str, Any]) -> None:
        self.queue.leave(data["group"])
        self.work.close(data["group"])

    def _group_admit(self, time: float, data: dict[str, Any]) -> None:
        self.work.admit(data["group"], data["version"], time)

    def _group_complete(self, time: float, data: dict[str, Any]) -> None:
        self.queue.put(data["group"], time)
        self.work.close(data["group"])

    def _batch_ready(self, time: float, data: dict[str, Any]) -> None:
        self.queue.serve(data["groups"], time)

    def _phase_begin(self, time: float, data: dict[str, Any]) -> None:
        self.loop.begin(data["phase"], time)
        if data["phase"] == "get_batch":
            self.queue.ask(time)

    def _phase_end(self, time: float, data: dict[str, Any]) -> None:
        self.loop.end(data["phase"], time)
        if data["phase"] == "get_batch":
            self.queue.answered(time)

    def _sync(self, time: float, data: dict[str, Any]) -> None:
        self._sync_seconds += data["seconds"]

    def _eval_begin(self, time: float, data: dict[str, Any]) -> None:
        self._evaluating = True

    def _eval_end(self, time: float, data: dict[str, Any]) -> None:
        self._evaluating = False
        self.tokens.evaluation += data["tokens"]

    def _worker_restarted(self, time: float, data: dict[str, Any]) -> None:
        self.restarts[data["worker"]] += 1
