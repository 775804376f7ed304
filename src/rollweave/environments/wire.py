"""What a host and an environment process say to each other: frames of a four-byte length and a body.

Requests are pickled: they hold a task's data, which may be anything. Replies are JSON: what comes back from a
user's class is text and numbers, and objects of its own making (in `info`) need not exist in the host.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LENGTH = struct.Struct("!I")


@dataclass(slots=True)
class Request:
    id: int
    slot: int
    """Which of the process's environments."""
    method: str
    arguments: tuple[Any, ...] = ()


def pack_request(request: Request) -> bytes:
    return prefixed(pickle.dumps(request))


def pack_reply(reply: dict[str, Any]) -> bytes:
    return prefixed(json.dumps(reply, default=str).encode())


def prefixed(body: bytes) -> bytes:
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
