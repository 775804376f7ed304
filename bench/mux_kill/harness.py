"""A daemon at work, and a harness that kills its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rollweave.mux.daemon.client import Client
from rollweave.mux.daemon.store import NoDaemon, StateFolder, Store
from rollweave.runtimes.machine import Process, alive

VICTIMS = ("job", "daemon", "both")
PATIENCE = 120.0
PHASE_SECONDS = 2.0
"""What a phase of such a job takes at the very most, on a machine that does other things too."""


@dataclass(slots=True)
class Point:
    number: int
    victim: str
    job: str = ""
    away: float = 0.0
    """Seconds without a daemon."""
    recovered: float = 0.0
    """Until every job had trained another step."""
    cold: float = 0.0
    """What the dead job needed to load everything again."""
    slowest: float = 0.0
    """The longest iteration of the jobs that were not killed."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        dead = f"{self.victim} {self.job}".strip()
        times = (
            f"daemon away {self.away:4.1f} s, all train again after {self.recovered:5.1f} s, start {self.cold:4.1f} s"
        )
        return (
            f"{self.number:>3}  {dead:<14} {times}, slowest of others {self.slowest:4.1f} s  {'; '.join(self.problems)}"
        )


class Harness:
    def __init__(self, state: Path, seed: int) -> None:
        self._folder = StateFolder(state)
        self._client = Client(self._folder)
        self._rng = Random(seed)
        self.jobs: list[str] = []

    @property
    def runs(self) -> list[Path]:
        return [self._folder.run(job) for job in self.jobs]

    def begin(self, job: Path, count: int) -> None:
        self._start_daemon()
        for number in range(count):
            words = ["submit", str(job), f"seed={number}", f"name=job{number}", "--slo", "20", "--json"]
            self.jobs.append(json.loads(self._cli(*words))["id"])
        self._until(lambda: all(len(self._rows(job)) >= 2 for job in self.jobs), "every job to train")

    def point(self, number: int, victim: str) -> Point:
        time.sleep(self._rng.uniform(0.0, 2.0))
        point = Point(number, victim)
        views = self._views()
        before = {job: self._rows(job) for job in self.jobs}
        struck = time.monotonic()
        if victim != "daemon":
            point.job = self._rng.choice(self.jobs)
            self._kill(views[point.job]["pid"])
        if victim != "job":
            self._kill(self._folder.address()["pid"])
            time.sleep(self._rng.uniform(0.0, 1.5))
            self._start_daemon()
            point.away = time.monotonic() - struck
        self._until(lambda: all(self._rows(job).keys() - before[job].keys() for job in self.jobs), "all to train again")
        point.recovered = time.monotonic() - struck
        self._judge(point, views, before)
        return point

    def _judge(self, point: Point, earlier: dict[str, Any], before: dict[str, dict[int, float]]) -> None:
        views = self._views()
        spared = [job for job in self.jobs if job != point.job]
        point.cold = views[point.job]["cold_start_seconds"] or 0.0 if point.job else 0.0
        rows = [seconds for job in spared for step, seconds in self._rows(job).items() if step not in before[job]]
        point.slowest = max(rows, default=0.0)
        usual = max(seconds for job in spared for seconds in before[job].values())
        if point.slowest > usual + point.cold + point.away + PHASE_SECONDS:
            point.problems.append(f"an iteration of {point.slowest:.1f} s, before it were {usual:.1f} s at most")
        point.problems += [f"{job} got another process" for job in spared if views[job]["pid"] != earlier[job]["pid"]]
        point.problems += [f"{job} is {view['state']}" for job, view in views.items() if view["state"] != "running"]
        point.problems += [f"{job} is gone" for job in self.jobs if job not in views]
        held = [node["holder"] for node in self._client.get("/daemon")["nodes"] if node["holder"]]
        if len(held) != len(set(held)):
            point.problems.append(f"a job holds two nodes at once: {held}")

    def finish(self) -> list[str]:
        """Stop everything in order; returns what is wrong with what is left."""
        self._cli("daemon", "stop")
        store = Store(self._folder.database)
        records, permits = store.jobs(), store.fact("permits")
        store.close()
        return [
            *(f"{job} is {records[job].state} after the stop" for job in self.jobs if records[job].state != "waiting"),
            *(f"{job} still has process {r.process}" for job, r in records.items() if r.process and alive(r.process)),
            *(["permits or requests outlived their jobs"] if permits["permits"] or permits["requests"] else []),
        ]

    def close(self) -> None:
        """End every process that is left, whatever happened."""
        with suppress(NoDaemon):
            self._kill(self._folder.address()["pid"])
        with suppress(OSError):
            for record in Store(self._folder.database).jobs().values():
                if isinstance(record.process, Process) and alive(record.process):
                    self._kill(record.process.pid)

    # ------------------------------------------------------------------------------------------------ tools

    def _rows(self, job: str) -> dict[int, float]:
        """Step -> how long it took, as the run itself wrote it down."""
        path = self._folder.run(job) / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return {row["step"]: row["time/step"] for row in rows if "time/step" in row}

    def _views(self) -> dict[str, Any]:
        return {view["id"]: view for view in self._client.get("/jobs")}

    def _start_daemon(self) -> None:
        self._cli("daemon", "start")

    def _cli(self, *words: str) -> str:
        command = [sys.executable, "-m", "rollweave.cli.main", *words, "--state", str(self._folder.path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"rollweave {' '.join(words)}: {done.stderr}")
        return done.stdout

    def _kill(self, pid: int | None) -> None:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _until(self, happens: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not happens():
            if time.monotonic() > end:
                raise RuntimeError(f"waited {PATIENCE:g} s for {what}; jobs: {self._views()}")
            time.sleep(0.1)
