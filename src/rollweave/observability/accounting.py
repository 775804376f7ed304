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
    CallMeter,
    LoopTime,
    QueueMeter,
    RewardMeter,
    ServedMeter,
    SlotMeter,
    TokenBooks,
)
from rollweave.observability.waits import OpenEpisode, OpenReward, OpenWork, WatchedGroup

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
        self.calls = CallMeter()
        self.served = ServedMeter()
        self.work = OpenWork()
        self.loop = LoopTime()
        self.restarts: Counter[str] = Counter()
        self._sync_seconds = 0.0
        self._moved_bytes = 0
        self._evaluating = False

    def __call__(self, event: Event) -> None:
        self._follow_work(event.name, event.time, event.data)
        self._follow_loop(event.name, event.time, event.data)

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
            **self.calls.sample(),
            **self.served.sample(),
            **{f"restarts/{worker}": count for worker, count in self.restarts.items()},
            "time/sync": self._sync_seconds,
            "weights/moved_mb": self._moved_bytes / 1e6,
        }
        self._sync_seconds, self._moved_bytes = 0.0, 0
        return row

    def resume(self, earlier: Iterable[Event], rows: Sequence[Mapping[str, Any]]) -> None:
        """Go on where an earlier process of the run stopped: its events, and the counts of its engines."""
        last = 0.0
        for event in earlier:
            self(event)
            last = event.time
        self.tokens.generated = sum(int(row.get("tokens/generated") or 0) for row in rows)
        self.tokens.booked[LOST] = sum(int(row.get(f"tokens/wasted/{LOST}") or 0) for row in rows)
        for episode in self.work.playing:
            self.bias.end(episode, last, 0, natural=False, failed=True)
        self.work.playing.clear()  # the processes that played and scored are gone
        self.work.scoring.clear()
        self._evaluating = False
        self.sample(last)  # those rows are written
        self.tokens.settle()  # what was being played is gone: lost in the first row to come

    def _go_back(self, version: int, complete: list[int], open: list[tuple[int, int]], time: float) -> None:
        """To a checkpoint: these groups are complete or open again. Episodes of others are still being played, until
        they are heard of."""
        self.tokens.go_back(version)
        self.work.groups = {group: WatchedGroup(group, began, time) for group, began in open}
        self.work.scoring.clear()
        self.queue.complete = dict.fromkeys(complete, time)
        self.queue.trainer_asked = None
        self.loop.stop(time)
        self._evaluating = False

    def _follow_work(self, name: str, time: float, data: dict[str, Any]) -> None:
        """Events of groups, episodes, rewards and attempts."""
        match name:
            case "group.admit":
                self.work.groups[data["group"]] = WatchedGroup(data["group"], data["version"], time)
            case "episode.begin":
                self.work.playing[data["id"]] = OpenEpisode(data["group"], time)
                self.slots.change(time, data["free"], data["slots"], data["in_line"])
                if data["group"] >= 0:  # evaluations stand outside
                    self.bias.begin(data["id"], time)
            case "route":
                self.served.route(data["attempt"], data["task"], data["pool"], "tried" in data)
            case "episode.end":
                self.work.playing.pop(data["id"], None)
                if data["group"] < 0:
                    self.served.drop(data["id"])
                self.slots.change(time, data["free"], data["slots"], data["in_line"])
            case "trajectory.end":
                outcome = data["outcome"]
                self.bias.end(data["id"], time, data["tokens"], outcome in BY_ITSELF, outcome in FAILURES)
                self.tokens.finish(data["id"], data["tokens"])
                self.served.end(data["id"], data["tokens"])
            case "reward.begin":
                self.rewards.begin()
                self.calls.begin(data["rewards"])
                self.work.scoring[data["id"]] = OpenReward(data["group"], time, tuple(data["rewards"]))
            case "reward.end":
                self.calls.add(data.get("calls", {}))
                if (reward := self.work.scoring.pop(data["id"], None)) is not None:
                    self.rewards.end(time - reward.since, data["threads_left"])
                    self.calls.end(reward.names)
            case "reward.again":
                self.rewards.again()
            case "reward.late":
                self.rewards.late(data["threads_left"])
                self.calls.add(data.get("calls", {}))
            case "attempt.end":
                if (reward := self.work.scoring.pop(data["id"], None)) is not None:  # it was given up
                    self.calls.end(reward.names)
                self.tokens.book(data["id"], data["end"], data["tokens"])
                if data["end"] == TRAINED:
                    self.bias.train(data["id"])
                else:
                    self.bias.throw_away(data["id"], filtered=data["end"] == FILTERED)
            case "group.complete":
                self.queue.put(data["group"], time)
                self.work.groups.pop(data["group"], None)
            case "task.end":
                self.queue.leave(data["group"])
                self.work.groups.pop(data["group"], None)
            case "batch.ready":
                self.queue.serve(data["groups"], time)
            case "attempts.undone":
                self.tokens.undo(data["ends"], data["tokens"], data["open"])

    def _follow_loop(self, name: str, time: float, data: dict[str, Any]) -> None:
        """Events of the run's loop and of its workers."""
        match name:
            case "phase.begin":
                self.loop.begin(data["phase"], time)
                if data["phase"] == "get_batch":
                    self.queue.ask(time)
            case "phase.end":
                self.loop.end(data["phase"], time)
                if data["phase"] == "get_batch":
                    self.queue.answered(time)
            case "run.back":
                self._go_back(data["version"], data["complete"], data["open"], time)
            case "checkpoint.begin":
                self.tokens.mark(data["version"])
                self.loop.begin("save", time)
            case "checkpoint.saved":
                self.loop.end("save", time)
            case "weights.publish" | "weights.stage" | "weights.commit":
                self._sync_seconds += data["seconds"]
                self._moved_bytes += data.get("moved_bytes", 0)
            case "eval.begin":
                self._evaluating = True
            case "eval.end":
                self._evaluating = False
                self.tokens.evaluation += data["tokens"]
            case "worker.restarted":
                self.restarts[data["worker"]] += 1
