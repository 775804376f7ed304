"""Watches jobs from outside and writes down when each of them completed a step."""

from __future__ import annotations

import time
from typing import Any

from rollweave.mux.daemon.client import Client

LOOK_SECONDS = 0.2
PATIENCE = 400.0


class Watch:
    def __init__(self, client: Client, steps: int) -> None:
        self._client = client
        self._steps = steps
        self.seen: dict[str, dict[int, float]] = {}
        """Job -> step -> when it was first seen to be that far; step 0: when it began its first iteration."""
        self.planned: dict[str, float] = {}

    def until_done(self) -> list[dict[str, Any]]:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            views: list[dict[str, Any]] = self._client.get("/jobs")
            for view in views:
                self._look_at(view)
            if all(view["state"] == "finished" for view in views):
                return views
            if bad := [view for view in views if view["state"] in ("failed", "cancelled")]:
                raise RuntimeError(f"{bad[0]['id']} is {bad[0]['state']}: {bad[0]['error']}")
            time.sleep(LOOK_SECONDS)
        raise RuntimeError(f"not done after {PATIENCE:g} s: {views}")

    def _look_at(self, view: dict[str, Any]) -> None:
        if view["first_ready"] is not None:
            seen = self.seen.setdefault(view["id"], {0: view["first_ready"]})
            seen.setdefault(view["step"], view["ended"] or time.time())
        if view["planned_seconds"]:
            self.planned[view["id"]] = max(view["planned_seconds"], self.planned.get(view["id"], 0.0))

    @property
    def begin(self) -> float:
        """When the last of them had begun."""
        return max(seen[0] for seen in self.seen.values())

    @property
    def end(self) -> float:
        """When the first of them was done."""
        return min(seen[self._steps] for seen in self.seen.values())

    def iteration(self, job: str) -> float:
        """Seconds per step of a job while all of them ran."""
        inside = {step: at for step, at in self.seen[job].items() if self.begin <= at <= self.end + LOOK_SECONDS}
        if len(inside) < 2:
            raise RuntimeError(
                f"{job} completed no two steps while all jobs ran: use more --steps, or a larger --slo if it had to "
                "wait for a place"
            )
        first, last = min(inside), max(inside)
        return (inside[last] - inside[first]) / (last - first)
