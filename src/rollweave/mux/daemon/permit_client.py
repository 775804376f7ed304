"""A job's side of the daemon: where a process that the daemon started gets its permits.

If the daemon is killed the job is not lost: it finishes the phase that it holds a permit for, then asks again and again
until a daemon answers. A lost answer does no harm, because asking twice with one ticket is asking once. Only the answer
that this process has no say any more (another process runs the job now, or the job was cancelled) ends it.

A training process that the daemon started begins with `join_daemon`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from rollweave.clock import Clock, run_wall
from rollweave.errors import RollweaveError
from rollweave.mux.daemon.controller import Wanted
from rollweave.mux.daemon.store import NoDaemon, StateFolder
from rollweave.mux.permits import StalePermit
from rollweave.pipelines.permits import MakePermits, SharedPool
from rollweave.runtimes.machine import use_cores, wall_time

POLL_SECONDS = 20.0
"""How long the daemon keeps a request for a permit open; then the job asks again."""

BACKOFF = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)


@dataclass(slots=True)
class DaemonPermits:
    """The permit source of a job that a daemon runs."""

    folder: StateFolder
    job: str
    life: int
    epoch: int | None = None
    cores: tuple[int, ...] = ()
    """The core of each node of the permit."""
    nodes: int | None = None
    """How many nodes it has so far, if it is to get more."""
    warm_seconds: float = 0.0
    """From the grant to the start of the phase, the last time."""
    clock: Clock = field(default_factory=Clock)
    """The clock of the loop that asks."""
    _tickets: Iterator[int] = field(default_factory=lambda: count(1))

    @classmethod
    def of_environment(cls) -> DaemonPermits:
        """As the daemon named folder, job and life to the process that it started."""
        return cls(StateFolder(Path(os.environ[FOLDER])), os.environ[JOB], int(os.environ[LIFE]))

    def on(self, clock: Clock) -> DaemonPermits:
        """Ask on the loop of this clock from now on."""
        self.clock = clock
        return self

    def start(self) -> None:
        """Wait for the permit to load everything. There is no event loop yet, so this blocks."""
        message = self._message("start", 0, 0)
        run_wall(lambda clock: self.on(clock)._until("permit", message, self._granted))

    async def take(self, pool: SharedPool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
        message = self._message(pool, step, tokens, partly)
        with self.clock.wait("job", f"a permit for the {pool} pool"):
            await self._until("permit", message, self._granted)
        return self.nodes

    async def widened(self) -> None:
        await self._until("widened", self._about_permit(), self._granted)

    async def awaited(self, keep: int) -> None:
        await self._until("awaited", self._about_permit(keep), lambda answer: bool(answer.json()["awaited"]))

    async def narrow(self, keep: int) -> None:
        use_cores(self.cores[:keep])  # before another job has the other nodes
        await self._until("narrow", self._about_permit(keep), self._granted)

    async def _until(self, what: str, message: dict[str, Any], done: Callable[[httpx2.Response], bool]) -> None:
        """Ask until `done` accepts the answer."""
        for number in count():
            try:
                async with httpx2.AsyncClient(**self.folder.connection(POLL_SECONDS + 10)) as client:
                    answer = await client.post(f"/jobs/{self.job}/{what}", json=message)
                self._check(answer)
                if done(answer):
                    return
            except (httpx2.HTTPError, NoDaemon):  # the daemon is away: it comes back, or this process is ended
                await self.clock.sleep(BACKOFF[min(number, len(BACKOFF) - 1)])

    def tell_profile(self, t_roll: float, t_train: float, memory_gb: float) -> None:
        """Report what was measured. The event loop of the measurement has ended, so this blocks."""
        message = {"life": self.life, "t_roll": t_roll, "t_train": t_train, "memory_gb": memory_gb}
        run_wall(lambda clock: self.on(clock)._until("profile", message, lambda answer: True))

    # --------------------------------------------------------------------------------------------- messages

    def _message(self, wanted: Wanted, step: int, tokens: int, partly: bool = False) -> dict[str, Any]:
        return {
            "life": self.life,
            "ticket": f"{self.life}.{next(self._tickets)}",
            "wanted": wanted,
            "epoch": self.epoch,
            "step": step,
            "tokens": tokens,
            "warm_seconds": self.warm_seconds,
            "partly": partly,
        }

    def _about_permit(self, keep: int = 1) -> dict[str, Any]:
        return {"life": self.life, "epoch": self.epoch, "keep": keep}

    def _granted(self, answer: httpx2.Response) -> bool:
        permit = answer.json()["permit"]
        if permit is None:
            return False
        if permit["epoch"] != self.epoch:
            self.warm_seconds = wall_time() - permit["since"]
        self.epoch, self.cores = permit["epoch"], tuple(permit["cores"])
        self.nodes = len(permit["nodes"]) if permit["owed"] else None
        use_cores(self.cores)
        return True

    def _check(self, answer: httpx2.Response) -> None:
        if answer.status_code == 409:
            raise StalePermit(answer.json()["detail"])
        if 400 <= answer.status_code < 500:
            raise RollweaveError(f"the daemon refused job {self.job}: {answer.json()['detail']}")
        answer.raise_for_status()


FOLDER, JOB, LIFE = "ROLLWEAVE_DAEMON_FOLDER", "ROLLWEAVE_DAEMON_JOB", "ROLLWEAVE_DAEMON_LIFE"
"""Environment variables of a process that the daemon starts: the state folder, the job and its life (a number)."""


def join_daemon() -> MakePermits:
    """In a process that the daemon started: wait for its permit to load. Returns how to get permits on a clock."""
    permits = DaemonPermits.of_environment()
    permits.start()
    return permits.on
