"""A whole run of the `rollart` pipeline on Ray: driver, hosts, engine and trainer, around parts that do nothing."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.control.null import ANSWER
from bench.control.plane import null_job
from bench.envs.parts import NullBlueprint, null_environment
from bench.kill.processes import WORKERS, family
from rollweave.clock import Clock, run_wall
from rollweave.config.job import RayRuntime
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import Event, Recorder
from rollweave.pipelines.assemble import assemble
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.runtimes.ray import start_ray
from rollweave.tasks import SeedSource

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Played:
    turns: int
    seconds: float
    at_once: int
    """The most episodes under way at the same time."""
    infra_failed: int
    """Attempts that a deadline or a failure ended."""
    cpu_seconds: dict[str, float]
    """By kind of process."""


class Concurrency:
    """A sink of events that remembers how many episodes were under way at most."""

    def __init__(self) -> None:
        self.most = 0

    def __call__(self, event: Event) -> None:
        if event.name == "episode.begin":
            self.most = max(self.most, cast(int, event.data["slots"]) - cast(int, event.data["free"]))


def play(environments: int, turns: int, hosts: int) -> Played:
    """Plays at least that many turns, `environments` episodes at a time, spread over the hosts."""
    return run_wall(lambda clock: _play(environments, turns, hosts, clock))


async def _play(environments: int, turns: int, hosts: int, clock: Clock) -> Played:
    job = null_job(environments, turns, runtime={"type": "ray", "hosts": hosts})
    assert isinstance(job.runtime, RayRuntime)
    blueprint = NullBlueprint(job, Path("unused"), null_environment)
    fleet, concurrency = Fleet(), Concurrency()
    dispatcher, recorder = Dispatcher.of(job.rollout, fleet), Recorder(clock.now, [concurrency])
    with tempfile.TemporaryDirectory(prefix="bench-envs-") as logs:
        async with start_ray(blueprint, job.runtime, fleet, dispatcher, clock, Path(logs), recorder) as trainer:
            source = SeedSource("null", job.seed)
            drive = assemble(job.control, fleet, dispatcher, trainer, source, (), Path("unused"), clock, recorder)
            before, started = cpu_seconds(), clock.now()
            await drive.advance()
            seconds, after = clock.now() - started, cpu_seconds()
            sampled = (await fleet.look()).totals.sampled_tokens
    ledger = drive.loop.scheduler.ledger
    ledger.check()
    used = {kind: round(after[kind] - before.get(kind, 0.0), 2) for kind in after}
    return Played(sampled // len(ANSWER), seconds, concurrency.most, ledger.summary()["attempts"]["infra-failed"], used)


def cpu_seconds() -> dict[str, float]:
    """What this process and those that it started have used so far, by kind: driver, host, engine, trainer, ray."""
    used: defaultdict[str, float] = defaultdict(float)
    for pid, command in family(os.getpid()).items():
        used[_kind(pid, command)] += _cpu_seconds(pid)
    return used


def _kind(pid: int, command: str) -> str:
    if pid == os.getpid():
        return "driver"
    return next((kind for kind, name in WORKERS.items() if name in command), "ray")


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
