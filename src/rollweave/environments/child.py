"""The host's end of an environment process: start it, call into it, kill it.

Everything happens in callbacks of the event loop: no thread, no background task. A process that ends takes
its open calls with it; as it answers in order, the oldest open call is the one it died of.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from rollweave import errors
from rollweave.environments.worker import ChildCall, Frames, pack_request, prefixed
from rollweave.errors import EnvironmentFailed, RollweaveError


class ChildDied(Exception):
    """The process is gone. `guilty`: it died of this very call."""

    def __init__(self, how: str, guilty: bool) -> None:
        super().__init__(how)
        self.guilty = guilty


class RemoteTraceback(Exception):
    """The traceback inside the environment process, as text; the cause of the error raised here."""


class Child(asyncio.Protocol):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.alive = True
        self.slots: set[int] = set()
        """Environments that live in it."""
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._frames = Frames()

    @classmethod
    async def start(cls, factory: bytes) -> Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = _spawn(theirs.fileno())
        child = cls(process)
        try:
            await asyncio.get_running_loop().create_connection(lambda: child, sock=ours)
        except asyncio.CancelledError:
            ours.close()  # the process reads the end of its socket and goes
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
        """Raises what the call raised there, or ChildDied."""
        if not self.alive:
            raise ChildDied("its process is gone", guilty=False)
        request = ChildCall(next(self._numbers), slot, method, arguments)
        answer = self._calls[request.id] = asyncio.get_running_loop().create_future()
        self._transport.write(pack_request(request))
        try:
            return await answer
        finally:
            self._calls.pop(request.id, None)

    def kill(self, how: str = "its process was killed") -> None:
        """End the process at once; no open call is to blame."""
        self._end(how, guilty=None)

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            reply = json.loads(body)
            answer = self._calls.get(reply["id"])
            if answer is None or answer.done():
                continue
            if "error" in reply:
                answer.set_exception(_remote_error(reply))
            else:
                answer.set_result(reply["value"])

    def connection_lost(self, error: Exception | None) -> None:
        if self.alive:
            self._end(f"its process ended {_how(self.process)}", guilty=next(iter(self._calls), None))

    def _end(self, how: str, guilty: int | None) -> None:
        if not self.alive:
            return
        self.alive = False
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._transport.abort()
        for number, answer in self._calls.items():
            if not answer.done():
                answer.set_exception(ChildDied(how, guilty=number == guilty))


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "rollweave.environments.worker", str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what user code prints must not mix with what this program prints
        pass_fds=[descriptor],
        env=_environment(),
        start_new_session=True,  # killed as a group, with whatever it started
    )


def _environment() -> dict[str, str]:
    """What is importable here is importable there; numeric libraries keep to one thread per process."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


def _how(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=1.0)  # its end of the socket closes a moment before it is gone
    except subprocess.TimeoutExpired:
        return "its connection"
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _remote_error(reply: dict[str, Any]) -> RollweaveError:
    kind = getattr(errors, reply["kind"], EnvironmentFailed)
    error: RollweaveError = kind(reply["error"])
    error.__cause__ = RemoteTraceback(reply["traceback"])
    return error
