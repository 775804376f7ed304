"""Where versions of the weights wait for the engines.

The trainer pushes a version once, in buckets; every engine pulls it when it likes and verifies each bucket before it
uses any of it. The last two versions are kept, so an engine that is still reading version n is not disturbed by n + 1.
A version is there as a whole or not at all.

A push is a mapping of names to tensors, all of a model or some: engines take what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from rollweave.errors import RollweaveError
from rollweave.versions import Version
from rollweave.weights.buckets import Bytes, Fingerprint, Into, Manifest, Packing, unpack

KEPT_VERSIONS = 2
BUCKET_MB = 64.0


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
        packing = Packing(tensors, self._bucket_bytes)
        flat = np.empty(packing.size, np.uint8)
        manifest = packing.copy_to(flat, version)
        self._versions[version] = manifest, flat
        for gone in set(self._versions) - kept_versions(version, self._versions):
            del self._versions[gone]
        return manifest.fingerprint

    def pull(self, version: int, into: Into) -> Fingerprint:
        if version not in self._versions:
            raise missing_version(version, self._versions)
        return unpack(*self._versions[version], into)

    def latest(self) -> int | None:
        return max(self._versions, default=None)


# ------------------------------------------------------------------------------------------ versions, in every store


def kept_versions(pushed: int, versions: Iterable[int]) -> set[int]:
    """What stays after a push: it and the one before. Later ones belong to a trainer's life that was taken back."""
    return set(sorted(v for v in versions if v <= pushed)[-KEPT_VERSIONS:])


def version_name(version: int) -> str:
    """How a version is called where names are text."""
    return f"version-{int(version)}"


def named_version(name: str) -> int:
    """The version that has this name."""
    return int(name.removeprefix("version-"))


def missing_version(version: int, there: Iterable[int]) -> WeightStoreError:
    have = ", ".join(str(Version(one)) for one in sorted(there)) or "none"
    return WeightStoreError(
        f"version {Version(version)} of the weights is not in the store (it holds: {have}); push it first"
    )
