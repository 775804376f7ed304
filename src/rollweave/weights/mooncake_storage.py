"""Weights in Mooncake's distributed store, over TCP. The trainer's process lends it the memory; engines only read.

A `mooncake_master` must run; its address is `weights.url`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rollweave.weights.relay import BrokenTransfer
from rollweave.weights.store import KEPT_VERSIONS, WeightStoreError

INSTALL = (
    "pip install 'rollweave[mooncake]', and on Debian: apt install libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200"
)

BUFFER_BYTES = 256 * 2**20
"""Of each process, for what is on its way."""

ROOM = KEPT_VERSIONS + 2
"""In sizes of a version: those that are kept, the next one, and what keeps Mooncake from throwing objects out."""


@dataclass(slots=True)
class MooncakeStorage:
    master: str
    """`host:port` of the `mooncake_master`."""
    prefix: str
    """Of all names: several runs may share a master."""
    _client: Any = None
    _lends: bool = False
    """This process lends Mooncake memory: it is the trainer's."""
    _undropped: set[str] = field(default_factory=set)
    """What was still being read when it should have gone."""

    def open(self, size: int) -> None:
        if not self._lends:
            if self._client is not None:
                self._client.close()
            self._client, self._lends = self._connected(ROOM * size + BUFFER_BYTES), True

    def put(self, name: str, data: bytes) -> None:
        client, key = self._connection(), f"{self.prefix}/{name}"
        code = client.upsert(key, data)
        if code:
            raise WeightStoreError(
                f"weights.url: Mooncake at {self.master} does not take {name} of {len(data) / 1e6:.0f} MB (its code "
                f"{code}): see whether mooncake_master runs, and whether this machine has the memory"
            )

    def get(self, name: str) -> bytes | None:
        client, key = self._connection(), f"{self.prefix}/{name}"
        there = client.is_exist(key)
        if there < 0:
            raise BrokenTransfer(f"Mooncake at {self.master} does not answer (its code {there})")
        if not there:
            return None
        data: bytes = client.get(key)
        if not data:
            raise BrokenTransfer(f"Mooncake at {self.master} did not hand over {name}")
        return data

    def drop(self, names: Iterable[str]) -> None:
        client = self._connection()
        self._undropped |= set(names)
        for name in list(self._undropped):
            key = f"{self.prefix}/{name}"
            if not client.remove(key) or not client.is_exist(key):
                self._undropped.remove(name)

    def clear(self) -> None:
        """The memory is the trainer's, and ends with it."""

    def _connection(self) -> Any:
        if self._client is None:
            self._client = self._connected(0)
        return self._client

    def _connected(self, segment: int) -> Any:
        try:
            from mooncake.store import MooncakeDistributedStore
        except ImportError as error:
            raise WeightStoreError(f"weights.store=mooncake: {error}; {INSTALL}") from error
        client = MooncakeDistributedStore()
        code = client.setup(self._own_address(), "P2PHANDSHAKE", segment, BUFFER_BYTES, "tcp", "", self.master)
        if code:
            raise WeightStoreError(
                f"weights.url: no mooncake_master answers at {self.master} (its code {code}): start one there with "
                "`mooncake_master`"
            )
        return client

    def _own_address(self) -> str:
        """Of this machine, as the master sees it."""
        host, _, port = self.master.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
            some.connect((host, int(port)))  # sends nothing
            address: str = some.getsockname()[0]
            return address
