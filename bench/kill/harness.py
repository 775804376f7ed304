"""Starts a run, kills parts of it, starts it again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.kill import processes
from rollweave.observability.metrics import read_metrics

VICTIMS = ("machine", "driver", "trainer", "engine", "host")
"""`machine`: every process of the run at once, as when the power goes. `driver`: that one alone."""

DRIVER_IS_GONE_WITH = {"machine", "driver"}
PATIENCE = 240.0
"""Seconds until a run that does not get going again counts as stuck."""


@dataclass(slots=True)
class Point:
    number: int
    victim: str
    step: int
    """Steps that metrics.jsonl had when it happened."""
    seconds: float
    """After the process had trained its first step."""
    again: float | None = None
    """Killed once more so many seconds after it was started again."""
    orphans_seconds: float | None = None
    """How long processes outlived a dead driver."""
    recovered_seconds: float | None = None
    """Until the next step was trained."""
    problem: str = ""


class Harness:
    def __init__(self, job: Path, run: Path, seed: int, log: Path) -> None:
        self._job = job
        self._run = run
        self._rng = Random(seed)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._agents: dict[int, str] = {}

    def point(self, number: int, victim: str) -> Point:
        """One kill, up to where the run trains again."""
        self._start()
        self._until(self._plays, "the run to train")
        point = Point(number, victim, self._steps(), self._rng.uniform(0.0, 5.0))
        time.sleep(point.seconds)
        killed = time.monotonic()
        self._strike(victim, point)
        if victim in DRIVER_IS_GONE_WITH and self._rng.random() < 0.5:
            point.again = self._rng.uniform(0.0, 12.0)
            self._start()
            time.sleep(point.again)
            self._strike(victim, point)
        rows = self._rows()  # a resume may take some back; what counts is a row that was not there before
        self._start()
        self._until(lambda: bool(self._rows() - rows), "the run to train again")
        point.recovered_seconds = time.monotonic() - killed
        return point

    def finish(self, more_steps: int = 3) -> None:
        """Interrupt it as a user would, then let it come to its end a few steps later."""
        self._start()
        self._until(self._plays, "the run to train")
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE)
        steps = self._steps()
        self._launch(f"training.steps={steps + more_steps}")
        if self._process.wait(PATIENCE) != 0:
            raise RuntimeError(f"the run did not come to its end; see {self._log}")

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            processes.kill(list(processes.family(self._process.pid)))
            self._process.wait()

    # ------------------------------------------------------------------------------------------------- the run

    def _start(self) -> bool:
        """Start or resume it if it does not run; returns whether it had to be."""
        if self._process is not None and self._process.poll() is None:
            return False
        self._launch()
        return True

    def _launch(self, *overrides: str) -> None:
        command = [sys.executable, "-m", "rollweave.cli.main", "train", str(self._job), *overrides]
        self._rows_before = self._rows()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--out", str(self._run), "--resume"], stdout=log, stderr=log, start_new_session=True
            )

    def _plays(self) -> bool:
        """The process that runs now has trained a step."""
        return bool(self._rows() - self._rows_before)

    def _rows(self) -> set[str]:
        path = self._run / "metrics.jsonl"
        return {line for line in path.read_text().splitlines() if "reward/mean" in line} if path.exists() else set()

    def _steps(self) -> int:
        return sum("reward/mean" in row for row in read_metrics(self._run).rows)

    def _until(self, happens: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not happens():
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the run ended while waiting for {what}; see {self._log}")
            if time.monotonic() > end:
                raise RuntimeError(f"waited {PATIENCE:g} s for {what}; see {self._log}")
            time.sleep(0.2)

    # ------------------------------------------------------------------------------------------------- the kill

    def _strike(self, victim: str, point: Point) -> None:
        assert self._process is not None
        members = processes.family(self._process.pid)
        if victim == "machine":
            processes.kill(list(members))
        elif victim == "driver":
            processes.kill([self._process.pid])
        else:
            found = processes.workers(members, victim)
            if not found:
                point.victim = f"{victim} (none yet)"
                return
            processes.kill([self._rng.choice(found)])
        if victim in DRIVER_IS_GONE_WITH:
            self._process.wait()
            self._bury(members, point)

    def _bury(self, members: dict[int, str], point: Point) -> None:
        """Wait until no process outlives the driver; those that stay too long are killed and noted as a problem.

        Ray's own agents go on for a minute to report a dead raylet, so `agents_left` looks at them in the end.
        """
        died = time.monotonic()
        self._agents |= {pid: command for pid, command in members.items() if "Agent" in command}
        while (left := self._outliving(members)) and time.monotonic() - died < PATIENCE / 4:
            time.sleep(0.2)
        point.orphans_seconds = time.monotonic() - died
        if left:
            point.problem = f"{len(left)} processes outlived the driver: {sorted(set(left.values()))}"
            processes.kill(list(left))

    def _outliving(self, members: dict[int, str]) -> dict[int, str]:
        alive = processes.survivors(members)
        return {pid: command for pid, command in alive.items() if pid not in self._agents}

    def agents_left(self) -> list[str]:
        """Agents of dead drivers that do not go at all."""
        end = time.monotonic() + PATIENCE
        while (left := processes.survivors(self._agents)) and time.monotonic() < end:
            time.sleep(1.0)
        processes.kill(list(left))
        return [f"{command} outlived its driver" for command in left.values()]
