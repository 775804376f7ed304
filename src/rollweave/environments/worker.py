"""The child of process isolation: holds a few environments and answers calls to them over a socket.

Calls are answered in the order they came, except that `async` environments let each other run while they
wait. The process ends when its host goes away, or when the host kills it because a call hung.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import socket
import sys
import traceback
from dataclasses import astuple
from typing import Any

from rollweave.environments.protocol import MakeEnvironment, ScriptedEnvironment, StepResult
from rollweave.environments.wire import Frames, Request, pack_reply
from rollweave.errors import RollweaveError


class Worker:
    def __init__(self, make: MakeEnvironment, writer: asyncio.StreamWriter) -> None:
        self.make = make
        self.writer = writer
        self.environments: dict[int, ScriptedEnvironment] = {}

    async def answer(self, request: Request) -> None:
        try:
            reply: dict[str, Any] = {"value": await self._call(request)}
        except RollweaveError as error:
            details = "".join(traceback.format_exception(error))
            reply = {"error": str(error), "kind": type(error).__name__, "traceback": details}
        self.writer.write(pack_reply({"id": request.id, **reply}))
        await self.writer.drain()

    async def _call(self, request: Request) -> Any:
        if request.method == "make":
            made = self.environments[request.slot] = self.make(*request.arguments)
            return bool(getattr(made, "deterministic", False))
        environment = self.environments[request.slot]
        if request.method == "close":
            del self.environments[request.slot]
        value = await getattr(environment, request.method)(*request.arguments)
        return astuple(value) if isinstance(value, StepResult) else value


async def serve(connection: socket.socket) -> None:
    """Read the factory, then answer requests until the host hangs up."""
    reader, writer = await asyncio.open_connection(sock=connection)
    frames, worker = Frames(), None
    async with asyncio.TaskGroup() as calls:
        while data := await reader.read(1 << 16):
            for body in frames.feed(data):
                if worker is None:
                    worker = Worker(pickle.loads(body), writer)
                else:
                    calls.create_task(worker.answer(pickle.loads(body)))
        os._exit(0)  # nobody waits for what is still running


def die_with_host() -> None:
    """A child stuck in user code would not notice that its host is gone: let the kernel tell it (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    die_with_host()
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
