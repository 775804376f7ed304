"""Turns a run's events into a timeline: a Chrome trace, which Perfetto opens.

`Timeline` is a sink for events. It is used during a simulation, or afterwards with the events of a run folder. Tracks:

    loop        the phases of the pipeline: get_batch, train, sync_exposed, eval
    weights     publishing, staging and committing versions
    episodes    each episode from its beginning to its end, on as many lanes as run at once
    rewards     each reward that took time, from the end of its episode, on as many lanes as are computed at once
    engines     each answer that a simulated engine generated (only in a simulation with --trace)
    counters    complete groups that wait for the trainer, running episodes
"""

from __future__ import annotations

import heapq
import json
from pathlib import Path
from typing import Any

from rollweave.observability.events import Event

LOOP, WEIGHTS, EPISODES, ENGINES, REWARDS = 1, 2, 3, 4, 5
NAMES = {LOOP: "loop", WEIGHTS: "weights", EPISODES: "episodes", ENGINES: "engines", REWARDS: "rewards"}


class Lanes:
    """Assigns lanes: each new episode gets the lowest free lane."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next

    @property
    def taken(self) -> int:
        return self._next - len(self._free)

    def give_back(self, lane: int) -> None:
        heapq.heappush(self._free, lane)


class Timeline:
    """Collects events as slices and counters of a trace."""

    def __init__(self) -> None:
        self.slices: list[dict[str, Any]] = []
        self._open: dict[str, tuple[float, int]] = {}
        """For each open phase or episode, the time at which it began, and its lane."""
        self._lanes = Lanes()
        self._reward_lanes = Lanes()
        self._buffered = 0

    def __call__(self, event: Event) -> None:
        name, time = event.name, event.time
        data: dict[str, Any] = event.data
        match name:
            case "phase.begin":
                self._open[f"phase {data['phase']}"] = (time, 1)
            case "phase.end":
                began, lane = self._open.pop(f"phase {data['phase']}", (time, 1))
                self._slice(LOOP, lane, data["phase"], began, time, {"step": data["step"]})
            case "stream.begin":
                self._open["stream"] = (time, 2)
            case "stream.end" if "stream" in self._open:
                began, lane = self._open.pop("stream")
                self._slice(LOOP, lane, "stream", began, time, {"step": data["step"], "groups": data["groups"]})
            case "episode.begin":
                self._open[data["id"]] = (time, self._lanes.take())
                self._count("episodes", time, self._lanes.taken)
            case "episode.end" if data["id"] in self._open:
                began, lane = self._open.pop(data["id"])
                self._lanes.give_back(lane)
                self._slice(EPISODES, lane, f"group {data['group']}", began, time, {"episode": data["id"]})
                self._count("episodes", time, self._lanes.taken)
            case "reward.begin":
                self._open[f"reward {data['id']}"] = (time, self._reward_lanes.take())
            case "reward.end" | "attempt.end" if f"reward {data['id']}" in self._open:
                began, lane = self._open.pop(f"reward {data['id']}")
                self._reward_lanes.give_back(lane)
                # A reward that has not come when its attempt ends was given up.
                outcome = data["end"] if name == "attempt.end" else "failed" if data["cause"] else "scored"
                self._slice(REWARDS, lane, str(data["id"]), began, time, {"outcome": outcome})
            case "weights.publish" | "weights.stage" | "weights.commit":
                what = name.removeprefix("weights.")
                lane = 1 + ("publish", "stage", "commit").index(what)
                self._slice(WEIGHTS, lane, f"{what} version {data['version']}", time - data["seconds"], time, {})
            case "turn.end":
                arguments = {"turn": data["id"], "tokens": data["tokens"], "engine": data["engine"]}
                self._slice(ENGINES, data["engine"] + 1, data["task"], time - data["seconds"], time, arguments)
            case "run.back":
                self._buffered = len(data["complete"])
            case "group.complete":
                self._buffered += 1
                self._count("groups complete", time, self._buffered)
            case "batch.ready":
                self._buffered -= len(data["groups"])
                self._count("groups complete", time, self._buffered)

    def write(self, path: Path) -> None:
        names = [
            {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
            for process, name in NAMES.items()
        ]
        path.write_text(json.dumps({"traceEvents": [*names, *self.slices]}), encoding="utf-8")

    def _slice(self, process: int, lane: int, name: str, began: float, end: float, more: dict[str, Any]) -> None:
        self.slices.append(
            {
                "ph": "X",
                "pid": process,
                "tid": lane,
                "name": name,
                "ts": round(began * 1e6),
                "dur": round((end - began) * 1e6),
                "args": more,
            }
        )

    def _count(self, name: str, time: float, value: int) -> None:
        self.slices.append({"ph": "C", "pid": LOOP, "name": name, "ts": round(time * 1e6), "args": {"count": value}})
