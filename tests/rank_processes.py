"""Ranks in processes of their own, for tests: the same function runs on all of them.

They are forked from a server that has imported torch and transformers once, so that a pair takes a second and not ten.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rollweave.training.ranks import Meeting, Ranks, contact, join

PRELOADED = ["torch.distributed.checkpoint", "torch.distributed.fsdp", "transformers", "rollweave.training.trainer"]
SECONDS = 30.0


class RankProcesses:
    """So many ranks; a call that failed on one raises what it raised there."""

    def __init__(self, size: int, seconds: float = SECONDS) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pipes: list[Any] = []
        self.processes: list[Any] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, seconds), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)
        port = self._pipes[0].recv()
        for pipe in self._pipes[1:]:
            pipe.send(port)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(ranks, *arguments)` returned, by rank."""
        self.send(function, *arguments)
        answers = [self.answer(rank) for rank in range(len(self._pipes))]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        for pipe in self._pipes:
            pipe.send((function, arguments))

    def answer(self, rank: int) -> Any:
        """What a rank returned or raised."""
        return self._pipes[rank].recv()

    def end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()


@contextmanager
def rank_processes(size: int, seconds: float = SECONDS) -> Iterator[RankProcesses]:
    ranks = RankProcesses(size, seconds)
    try:
        yield ranks
    finally:
        ranks.end()


def _serve(pipe: Any, rank: int, size: int, seconds: float) -> None:
    import torch

    torch.set_num_threads(1)
    if rank == 0:
        meeting = Meeting(size, seconds)
        pipe.send(meeting.port)
        ranks = meeting.join(size, seconds, "cpu")
    else:
        ranks = join(pipe.recv(), rank, size, seconds, "cpu")
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(function, ranks, arguments))


def _answer(function: Callable[..., Any], ranks: Ranks, arguments: tuple[Any, ...]) -> Any:
    try:
        with contact():
            return function(ranks, *arguments)
    except Exception as error:  # travels to the test, which raises it
        traceback.print_exc()
        return error
