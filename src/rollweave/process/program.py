"""The program of such a process: it holds a few objects (environments, rewards) and answers calls over a socket.

Calls are answered in the order they came, except that `async` methods let each other run while they wait. The process
ends when its host ends, or when the host kills it because a call hung.

Messages are frames of a four-byte length and a body. Requests are pickled, because a task's data may contain any
object. Replies are JSON, because a user's class returns text and numbers, and the classes of other objects (in `info`)
need not exist in the host.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, is_dataclass
from typing import Any, NamedTuple

from rollweave.errors import RollweaveError

_LENGTH = struct.Struct("!I")


class ChildCall(NamedTuple):
    """A request to call a method of one object."""

    id: int
    slot: int
    """The number of the object in the process."""
    method: str
    arguments: tuple[Any, ...] = ()


def prefixed(body: bytes) -> bytes:
    """A frame with this body."""
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + int(_LENGTH.unpack_from(self._buffer)[0])
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body


@dataclass(slots=True)
class ChildProgram:
    """Makes objects and answers calls to them."""

    make: Callable[..., Any]
    writer: asyncio.StreamWriter
    objects: dict[int, Any] = field(default_factory=dict)

    async def answer(self, request: ChildCall) -> None:
        try:
            reply: dict[str, Any] = {"value": await self._call(request)}
        except RollweaveError as error:
            details = "".join(traceback.format_exception(error))
            reply = {"error": str(error), "kind": type(error).__name__, "traceback": details}
        self.writer.write(prefixed(json.dumps({"id": request.id, **reply}, default=str).encode()))
        await self.writer.drain()

    async def _call(self, request: ChildCall) -> Any:
        if request.method == "make":
            made = self.objects[request.slot] = self.make(*request.arguments)
            return bool(getattr(made, "deterministic", False))
        called = self.objects[request.slot]
        if request.method == "close":
            del self.objects[request.slot]
        value = await getattr(called, request.method)(*request.arguments)
        return astuple(value) if is_dataclass(value) and not isinstance(value, type) else value


async def serve(connection: socket.socket) -> None:
    """Read the factory, then answer requests until the host closes the connection."""
    reader, writer = await asyncio.open_connection(sock=connection)
    frames, program = Frames(), None
    async with asyncio.TaskGroup() as calls:
        while data := await reader.read(1 << 16):
            for body in frames.feed(data):
                if program is None:
                    program = ChildProgram(pickle.loads(body), writer)
                else:
                    calls.create_task(program.answer(pickle.loads(body)))
        os._exit(0)  # without waiting for calls that still run: their host is gone


def die_with_host() -> None:
    """Ask the kernel to kill this process when its host ends, because user code may be stuck (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    die_with_host()
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
