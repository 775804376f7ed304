"""The host's side of a process that runs user code: starts the process, calls into it, kills it.

Everything happens in callbacks of the event loop, without threads or background tasks. When a process ends, its open
calls fail. The process answers in order, so the oldest open call is the one that it died of.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from typing import Any

from rollweave import errors
from rollweave.errors import RollweaveError
from rollweave.process.program import ChildCall, Frames, prefixed


class ChildDied(Exception):
    """The process has ended. `caused_by_call` says whether it died of this call."""

    def __init__(self, how: str, caused_by_call: bool) -> None:
        super().__init__(how)
        self.caused_by_call = caused_by_call


class RemoteTraceback(Exception):
    """The traceback from inside the process, as text. It is the cause of the error raised in the host."""


class Child(asyncio.Protocol):
    """One process and the connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], failure: type[RollweaveError]) -> None:
        """`failure`: what an error becomes here that is not one of `rollweave.errors`."""
        self.process = process
        self._failure = failure
        self.alive = True
        self.slots: set[int] = set()
        """The numbers of the objects in this process."""
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._frames = Frames()

    @classmethod
    async def start(cls, factory: bytes, failure: type[RollweaveError]) -> Child:
        """`factory`: pickled; it makes the objects that are called in the process."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = _spawn(theirs.fileno())
        child = cls(process, failure)
        try:
            await asyncio.get_running_loop().create_connection(lambda: child, sock=ours)
        except asyncio.CancelledError:
            ours.close()  # then the process reads the end of its socket and ends
            raise
        child._transport.write(prefixed(factory))
        return child

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def take_slot(self) -> int:
        slot = next(self._numbers)
        self.slots.add(slot)
        return slot

    async def call(self, slot: int, method: str, *arguments: Any) -> Any:
        """Call a method of an object there. Raises what the method raised, or `ChildDied`."""
        if not self.alive:
            raise ChildDied("its process is gone", caused_by_call=False)
        request = ChildCall(next(self._numbers), slot, method, arguments)
        answer = self._calls[request.id] = asyncio.get_running_loop().create_future()
        self._transport.write(prefixed(pickle.dumps(request)))
        try:
            return await answer
        finally:
            self._calls.pop(request.id, None)

    def kill(self, how: str = "its process was killed") -> None:
        """End the process at once. No open call counts as the cause."""
        self._end(how, cause=None)

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            reply = json.loads(body)
            answer = self._calls.get(reply["id"])
            if answer is None or answer.done():
                continue
            if "error" in reply:
                answer.set_exception(_remote_error(reply, self._failure))
            else:
                answer.set_result(reply["value"])

    def connection_lost(self, error: Exception | None) -> None:
        if self.alive:
            self._end(f"its process ended {_describe_end(self.process)}", cause=next(iter(self._calls), None))

    def _end(self, how: str, cause: int | None) -> None:
        if not self.alive:
            return
        self.alive = False
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._transport.abort()
        for number, answer in self._calls.items():
            if not answer.done():
                answer.set_exception(ChildDied(how, caused_by_call=number == cause))


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "rollweave.process.program", str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what user code prints must not mix with what this program prints
        pass_fds=[descriptor],
        env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},  # one thread for numeric libraries
        start_new_session=True,  # so that it is killed as a group, with all processes that it started
    )


def _describe_end(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=1.0)  # its socket closes a moment before the process ends
    except subprocess.TimeoutExpired:
        return "its connection"
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _remote_error(reply: dict[str, Any], failure: type[RollweaveError]) -> RollweaveError:
    kind = getattr(errors, reply["kind"], failure)
    error: RollweaveError = kind(reply["error"])
    error.__cause__ = RemoteTraceback(reply["traceback"])
    return error
