"""Where versions of the weights wait for the engines.

The trainer pushes a version once, in buckets; every engine pulls it when it likes and verifies each bucket before it
uses any of it. The last two versions are kept, so an engine that is still reading version n is not disturbed by n + 1.
A version is there as a whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import TypeAdapter

from rollweave.errors import RollweaveError
from rollweave.versions import Version
from rollweave.weights.buckets import Bytes, Fingerprint, Into, Manifest, pack, unpack

KEPT_VERSIONS = 2
BUCKET_MB = 64.0

_INDEX = TypeAdapter(tuple[str, Manifest])
"""A manifest in a file, with the name of the file that holds the bytes."""


class WeightStoreError(RollweaveError):
    """A version that is not there, or no room for one."""


class WeightsLost(WeightStoreError):
    """A version that was there is gone, with the trainer or the node that held it. The trainer can make it again."""


class WeightStore(Protocol):
    def push(self, version: int, tensors: Mapping[str, Any]) -> Fingerprint:
        """Make a version available. Versions above it are forgotten: a trainer that went back makes them anew."""

    def pull(self, version: int, into: Into) -> Fingerprint:
        """Hand over the tensors of a version, each verified; returns the digests of what was read.

        Raises WeightMismatch, naming the bucket, and WeightStoreError.
        """

    def latest(self) -> int | None:
        """The newest version that is whole."""


class MemoryStore:
    """For engine and trainer in one process."""

    def __init__(self, bucket_mb: float = BUCKET_MB) -> None:
        self._bucket_bytes = int(bucket_mb * 2**20)
        self._versions: dict[int, tuple[Manifest, Bytes]] = {}

    def push(self, version: int, tensors: Mapping[str, Any]) -> Fingerprint:
        buffer = BytesIO()
        manifest = pack(version, tensors, self._bucket_bytes, lambda part: buffer.write(part.data))
        self._versions[version] = manifest, np.frombuffer(buffer.getbuffer(), np.uint8)
        for gone in set(self._versions) - kept_versions(version, self._versions):
            del self._versions[gone]
        return manifest.fingerprint

    def pull(self, version: int, into: Into) -> Fingerprint:
        if version not in self._versions:
            raise missing_version(version, sorted(self._versions))
        return unpack(*self._versions[version], into)

    def latest(self) -> int | None:
        return max(self._versions, default=None)


class SharedMemoryStore:
    """For processes on one machine: files in shared memory, mapped by the readers.

    A version's bytes have a file with a name of their own, and its manifest, which names that file, appears last, at
    once. So a trainer killed half-way leaves bytes that no index names, which the next push sweeps up; a version pushed
    again replaces the old one between two reads; and a file that a reader has mapped never changes.
    """

    def __init__(self, folder: Path, bucket_mb: float = BUCKET_MB) -> None:
        self.folder = folder
        self._bucket_bytes = int(bucket_mb * 2**20)

    def push(self, version: int, tensors: Mapping[str, Any]) -> Fingerprint:
        handle, data = tempfile.mkstemp(prefix=f"version-{version}-", suffix=".weights", dir=self.folder)
        try:
            with open(handle, "wb") as file:
                manifest = pack(version, tensors, self._bucket_bytes, lambda part: file.write(part.data))
        except OSError as error:
            os.unlink(data)
            raise WeightStoreError(
                f"version {version} of the weights does not fit into {self.folder} ({error}): the store keeps "
                f"{KEPT_VERSIONS} versions and needs room for another; in a container enlarge /dev/shm "
                "(docker run --shm-size=4g), or use runtime.type=inline"
            ) from error
        partial = Path(data).with_suffix(".partial")
        partial.write_bytes(_INDEX.dump_json((Path(data).name, manifest)))
        os.replace(partial, self._manifest(version))
        self._sweep(version)
        return manifest.fingerprint

    def pull(self, version: int, into: Into) -> Fingerprint:
        try:
            data, manifest = self._read(version)
            # A private mapping counts as writable, which torch wants of what it wraps; it is never written to.
            flat = np.memmap(self.folder / data, np.uint8, mode="c")
        except FileNotFoundError:
            raise missing_version(version, self._versions()) from None
        return unpack(manifest, flat, into)

    def latest(self) -> int | None:
        return max(self._versions(), default=None)

    def _versions(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("version-")) for path in self.folder.glob("version-*.json"))

    def _manifest(self, version: int) -> Path:
        return self.folder / f"version-{version}.json"

    def _read(self, version: int) -> tuple[str, Manifest]:
        return _INDEX.validate_json(self._manifest(version).read_bytes())

    def _sweep(self, version: int) -> None:
        """Remove versions that are not kept, and whatever no manifest names: the rest of a push that was killed."""
        kept = kept_versions(version, self._versions())
        named = {self._manifest(v).name for v in kept} | {self._read(v)[0] for v in kept}
        for path in self.folder.glob("version-*"):
            if path.name not in named:
                path.unlink(missing_ok=True)


def kept_versions(pushed: int, versions: Iterable[int]) -> set[int]:
    """What stays after a push: it and the one before. Later ones belong to a trainer's life that was taken back."""
    return set(sorted(v for v in versions if v <= pushed)[-KEPT_VERSIONS:])


def missing_version(version: int, there: list[int]) -> WeightStoreError:
    have = ", ".join(str(Version(one)) for one in there) or "none"
    return WeightStoreError(
        f"version {Version(version)} of the weights is not in the store (it holds: {have}); push it first"
    )
