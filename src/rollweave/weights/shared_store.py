"""SharedMemoryStore: versions of the weights for the processes of one machine, in files that all of them map.

A version's bytes lie in a buffer, a file in shared memory; its manifest, which names the buffer, appears last, at once.
Fresh memory costs ten times as much as copying to memory that has been used before, so buffers are used again, and
every process keeps them mapped. What tells a free buffer from one that is being read are locks of the operating
system, which end with their process:

    a reader   locks the buffer (shared), looks whether the manifest still names it, and reads
    a writer   locks a buffer (exclusive) that no kept version has and that is not locked, removes the manifest that
               names it, writes, and puts the new manifest in its place

So a buffer never changes while a manifest names it, and a trainer killed half-way leaves a buffer that no manifest
names, which the next push takes.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from pydantic import TypeAdapter

from rollweave.weights.buckets import Bytes, Fingerprint, Into, Manifest, Packing, unpack
from rollweave.weights.store import (
    BUCKET_MB,
    KEPT_VERSIONS,
    WeightStoreError,
    kept_versions,
    missing_version,
    named_version,
    version_name,
)

_INDEX = TypeAdapter(tuple[str, Manifest])
"""A manifest in a file, with the name of its buffer."""

BLINK_SECONDS = 0.002

Keep = Callable[[int, Iterable[int]], set[int]]
"""Which versions stay when one is written: it, and some of those that are there."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A file that is locked for a writer, and its bytes."""

    path: Path
    flat: Bytes


class SharedMemoryStore:
    def __init__(self, folder: Path, bucket_mb: float = BUCKET_MB, keep: Keep = kept_versions) -> None:
        self.folder = folder
        self._bucket_bytes = int(bucket_mb * 2**20)
        self._keep = keep
        self._mapped: dict[tuple[str, str], Bytes] = {}
        """By name and mode. To map a buffer anew costs a page fault for each of its pages."""

    def push(self, version: int, tensors: Mapping[str, Any]) -> Fingerprint:
        packing = Packing(tensors, self._bucket_bytes)
        with self.writing(version, packing.size) as buffer:
            manifest = packing.copy_to(buffer.flat, version)
            self.add(manifest, buffer)
        return manifest.fingerprint

    def pull(self, version: int, into: Into) -> Fingerprint:
        with self.reading(version) as (manifest, flat):
            return unpack(manifest, flat, into)

    def latest(self) -> int | None:
        return max(self.versions(), default=None)

    def versions(self) -> list[int]:
        return sorted(named_version(path.stem) for path in self.folder.glob("version-*.json"))

    def manifest(self, version: int) -> Manifest:
        return self._read(version)[1]

    # --------------------------------------------------------------------------------------------------- reading

    @contextmanager
    def reading(self, version: int) -> Iterator[tuple[Manifest, Bytes]]:
        """The bytes of a version, which stay as they are inside the block."""
        while True:
            name, manifest = self._read(version)
            try:
                file = (self.folder / name).open("rb")
            except FileNotFoundError:
                if version in self.versions() and self._read(version)[0] == name:
                    message = f"version {version} of the weights lost its bytes: {self.folder / name} is gone"
                    raise WeightStoreError(message) from None
                continue
            with file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:  # a writer has taken it, or is just giving it its name
                    time.sleep(BLINK_SECONDS)
                    continue
                if self._read(version) == (name, manifest):
                    # A private mapping counts as writable, which torch wants of what it wraps; it is never written to.
                    yield manifest, self._map(name, "c", max(1, manifest.size))
                    return

    def _read(self, version: int) -> tuple[str, Manifest]:
        try:
            return _INDEX.validate_json(self._manifest(version).read_bytes())
        except FileNotFoundError:
            raise missing_version(version, self.versions()) from None

    def _manifest(self, version: int) -> Path:
        return self.folder / f"{version_name(version)}.json"

    # --------------------------------------------------------------------------------------------------- writing

    @contextmanager
    def writing(self, version: int, size: int) -> Iterator[Buffer]:
        """A buffer of this size for a version. What an attempt that broke off has written is still in it."""
        file = self._free_buffer(version)
        with file:
            path = Path(file.name)
            try:
                if os.fstat(file.fileno()).st_size != max(1, size):
                    os.ftruncate(file.fileno(), 0)
                    os.posix_fallocate(file.fileno(), 0, max(1, size))  # else a full tmpfs kills the process
            except OSError as error:
                path.unlink(missing_ok=True)
                raise WeightStoreError(
                    f"version {version} of the weights does not fit into {self.folder} ({error}): the store keeps "
                    f"{KEPT_VERSIONS} versions there; in a container enlarge /dev/shm (docker run --shm-size=4g), or "
                    "use runtime.type=inline"
                ) from error
            yield Buffer(path, self._map(path.name, "r+", max(1, size)))

    def add(self, manifest: Manifest, buffer: Buffer) -> None:
        """Make the version in a buffer available, at once."""
        version = manifest.fingerprint.version
        partial = buffer.path.with_suffix(".partial")
        partial.write_bytes(_INDEX.dump_json((buffer.path.name, manifest)))
        os.replace(partial, self._manifest(version))
        self._sweep(version)

    def _free_buffer(self, version: int) -> BinaryIO:
        """One that is not locked and holds no version that stays, best one that holds none at all; or a new one."""
        named = self._named()
        kept = self._keep(version, (*named.values(), version))
        buffers = sorted(self.folder.glob("*.weights"), key=lambda path: path.name in named)
        for path in buffers:
            if named.get(path.name) not in kept and (file := _locked(path)):
                if path.name in named:
                    self._manifest(named[path.name]).unlink(missing_ok=True)
                return file
        handle, name = tempfile.mkstemp(prefix="buffer-", suffix=".weights", dir=self.folder)
        os.close(handle)
        file = _locked(Path(name))
        assert file is not None, "no other process knows it"
        return file

    def _named(self) -> dict[str, int]:
        """The versions, each by its buffer."""
        named = {}
        for version in self.versions():
            with suppress(WeightStoreError):  # it has just gone
                named[self._read(version)[0]] = version
        return named

    def _sweep(self, version: int) -> None:
        """Remove versions that are not kept, and buffers beyond those that the next pushes will need."""
        for gone in set(self.versions()) - self._keep(version, self.versions()):
            self._manifest(gone).unlink(missing_ok=True)
        for path in self.folder.glob("*.partial"):
            path.unlink(missing_ok=True)
        named = self._named()
        spare = [path for path in self.folder.glob("*.weights") if path.name not in named]
        for path in spare[max(0, KEPT_VERSIONS - len(named)) :]:
            if file := _locked(path):  # else a reader is not done with it
                path.unlink(missing_ok=True)
                file.close()

    def _map(self, name: str, mode: Literal["c", "r+"], size: int) -> Bytes:
        for key in [key for key in self._mapped if not (self.folder / key[0]).exists()]:
            del self._mapped[key]  # its memory is free once no process maps it
        flat = self._mapped.get((name, mode))
        if flat is None or flat.size != size:
            flat = self._mapped[name, mode] = np.memmap(self.folder / name, np.uint8, mode=mode)
        return flat


def _locked(path: Path) -> BinaryIO | None:
    """The file, if no other process reads or writes it; the lock ends when it is closed."""
    with suppress(FileNotFoundError):
        file = path.open("r+b")
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:  # it was not removed a moment ago
                return file
        file.close()
    return None
