"""The processes of a sharded trainer on Ray: one actor per rank, all on one node, and a handle for all of them.

The ranks live and die together. They compute hand in hand, so when one dies the others can only wait for it: the first
sign of that (Ray says that a rank is gone, or a rank that its peer has hung up) ends them all, and the caller hears
that the trainer died. The next trainer is a new group.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rollweave.errors import PeerLost, WorkerDied
from rollweave.runtimes.blueprint import Blueprint
from rollweave.runtimes.ray_clients import WorkerHandle
from rollweave.runtimes.ray_workers import Pid, TrainerWorker
from rollweave.training.protocol import Metrics
from rollweave.weights.store import WeightStore

log = logging.getLogger(__name__)

TRAINER = "trainer"
"""The group's name, and that of rank 0."""

NAMING_SECONDS = 1.0
"""A rank that lost a peer usually knows it a little earlier than Ray, which knows which one it was."""

ANSWER_SECONDS = 10.0
"""What goes wrong on one rank goes wrong on all of them at nearly the same time, or the others wait in vain."""


class RankWorker(TrainerWorker):
    """One rank of a sharded trainer."""

    def __init__(self, blueprint: Blueprint, store: WeightStore, rank: int, size: int, log: Path) -> None:
        super().__init__(blueprint, store, log)
        self._rank = rank
        self._size = size
        self._seconds = blueprint.job.training.rank_timeout

    def open_meeting(self) -> int:
        """Of rank 0: the port at which the others find it."""
        from rollweave.training.ranks import Meeting, leave

        leave()
        self._meeting = Meeting(self._size, self._seconds)
        return self._meeting.port

    def ready_at(self, port: int) -> Pid:
        from rollweave.crossing import find_device
        from rollweave.training.ranks import join, leave

        device = find_device(self._blueprint.job.device).type
        if self._rank == 0:
            ranks = self._meeting.join(self._size, self._seconds, device)
        else:
            leave()
            ranks = join(port, self._rank, self._size, self._seconds, device)
        self._peers = [_handle_of(pid) for pid in ranks.gathered(os.getpid())]
        self._core = self._blueprint.trainer(ranks)
        log.info("rank %d of %d is ready, process %d", self._rank, self._size, os.getpid())
        return os.getpid()

    def finish(self) -> Metrics:
        metrics = super().finish()
        largest = max(self._core.ranks.gathered(metrics["memory/trainer_mb"]))
        return metrics | {"memory/trainer_mb": largest}

    def put_down(self, ranks: Sequence[int]) -> None:
        """End these ranks. Ray asks a process to end itself, which one that stands still does not do."""
        for rank in ranks:
            with suppress(ProcessLookupError):
                if (peer := self._peers[rank]) is not None:
                    signal.pidfd_send_signal(peer, signal.SIGKILL)

    def invoke(self, method: str, *arguments: Any) -> Any:
        """Any other method, as a part of a call to all ranks."""
        from rollweave.training.ranks import contact

        with contact():
            return getattr(self, method)(*arguments)


@dataclass(frozen=True, slots=True)
class TrainerGroup(WorkerHandle):
    """All ranks as one worker. Rank 0 answers for them."""

    ranks: tuple[WorkerHandle, ...] = ()

    @classmethod
    def of(cls, ranks: Sequence[WorkerHandle]) -> TrainerGroup:
        first = ranks[0]
        return cls(first.actor, TRAINER, first.log, first.node, tuple(ranks))

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call all ranks. Raises WorkerDied if one of them is gone; then all of them are."""
        if method == "ready":
            try:
                method, arguments = "ready_at", (await self.ranks[0].call("open_meeting"),)
            except WorkerDied as death:
                self._give_up(f"rank 0: {death}", death)
        sent = _put(arguments)
        calls = [asyncio.ensure_future(rank.call("invoke", method, *sent)) for rank in self.ranks]
        try:
            return await self._answer(method, calls)
        finally:
            for call in calls:
                call.cancel()

    async def _answer(self, method: str, calls: Sequence[asyncio.Future[Any]]) -> Any:
        await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        failures = _failures(calls)
        if failures and not any(isinstance(error, WorkerDied) for error in failures.values()):
            lost = any(isinstance(error, PeerLost) for error in failures.values())
            await _death(calls, NAMING_SECONDS if lost else ANSWER_SECONDS)
            failures = _failures(calls)
        if not failures:
            return calls[0].result()
        for rank, error in failures.items():
            if isinstance(error, WorkerDied):
                self._give_up(f"rank {rank}: {error}", error)
        silent = [rank for rank, call in enumerate(calls) if not call.done()]
        rank, error = next(iter(failures.items()))
        if any(isinstance(one, PeerLost) for one in failures.values()):
            said = f"rank {', '.join(map(str, silent))} does not answer" if silent else "the ranks lost each other"
            if silent:
                await self.ranks[rank].call("put_down", silent)
            self._give_up(f"{said} in {method} (rank {rank}: {error})", error)
        if silent:  # it waits for the one that failed, and would for long
            self.end()
        raise error

    def tell(self, method: str, *arguments: Any) -> None:
        raise AssertionError("a trainer is always asked for an answer")

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()

    def _give_up(self, why: str, cause: BaseException) -> NoReturn:
        self.end()
        out_of_reach = isinstance(cause, WorkerDied) and cause.out_of_reach
        raise WorkerDied(f"the trainer of {len(self.ranks)} ranks died; {why}", TRAINER, out_of_reach) from cause


def _handle_of(pid: Pid) -> int | None:
    """Of a process on this machine, which stays its own when it has ended; None where the system has no such thing."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None


async def _death(calls: Sequence[asyncio.Future[Any]], seconds: float) -> None:
    """Wait until all calls have ended, or one of them because its rank died."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    pending = {call for call in calls if not call.done()}
    while pending and (left := until - loop.time()) > 0:
        ended, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if any(isinstance(call.exception(), WorkerDied) for call in ended):
            return


def _failures(calls: Sequence[asyncio.Future[Any]]) -> Mapping[int, BaseException]:
    """Rank -> what its call raised."""
    ended = {rank: call.exception() for rank, call in enumerate(calls) if call.done()}
    return {rank: error for rank, error in ended.items() if error is not None}


def _put(arguments: Sequence[Any]) -> list[Any]:
    """The arguments in the object store, once for all ranks."""
    import ray

    return [ray.put(argument) for argument in arguments]
