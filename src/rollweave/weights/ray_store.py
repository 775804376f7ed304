"""RayStore: versions of the weights in Ray's object store, for trainers and engines that share no memory.

The trainer puts a version into the store of its own node, in chunks; an engine on another node fetches them over the
network. A small actor, the index, knows which versions there are: engines ask it, because the trainer is busy training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollweave.weights.buckets import Bytes, Fingerprint, Into, Manifest, pack, unpack
from rollweave.weights.store import BUCKET_MB, WeightsLost, WeightStoreError, kept_versions, missing_version


class WeightIndex:
    """The actor that knows where the chunks of each version are. It holds references, no weights."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[Manifest, list[Any]]] = {}

    async def put(self, version: int, manifest: Manifest, chunks: list[Any]) -> None:
        self._versions[version] = manifest, chunks
        kept = kept_versions(version, self._versions)
        self._versions = {version: entry for version, entry in self._versions.items() if version in kept}

    async def get(self, version: int) -> tuple[Manifest, list[Any]] | None:
        return self._versions.get(version)

    async def versions(self) -> list[int]:
        return sorted(self._versions)


class RayStore:
    def __init__(self, index: Any, bucket_mb: float = BUCKET_MB) -> None:
        """`index`: the handle of the run's `WeightIndex`."""
        self._index = index
        self._bucket_bytes = int(bucket_mb * 2**20)

    def push(self, version: int, tensors: Mapping[str, Any]) -> Fingerprint:
        import ray
        from ray.exceptions import ObjectStoreFullError

        chunks = _Chunks(self._bucket_bytes)
        try:
            manifest = pack(version, tensors, self._bucket_bytes, chunks.write)
            chunks.flush()
        except ObjectStoreFullError as error:
            raise WeightStoreError(
                f"version {version} of the weights does not fit into the object store of the trainer's node: give it "
                "more room (ray start --object-store-memory BYTES)"
            ) from error
        ray.get(self._index.put.remote(version, manifest, chunks.put))
        return manifest.fingerprint

    def pull(self, version: int, into: Into) -> Fingerprint:
        import ray
        from ray.exceptions import RayError

        try:
            found = ray.get(self._index.get.remote(version))
            if found is None:
                raise missing_version(version, ray.get(self._index.versions.remote()))
            manifest, chunks = found
            return unpack(manifest, _joined([ray.get(chunk) for chunk in chunks]), into)
        except RayError as error:  # the trainer that put it died, or a node went with it
            raise WeightsLost(f"version {version} of the weights is lost: {error}") from error

    def latest(self) -> int | None:
        import ray

        versions: list[int] = ray.get(self._index.versions.remote())
        return max(versions, default=None)


class _Chunks:
    """Collects bytes, and puts them into the object store as soon as there are enough."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: list[Bytes] = []
        self._held = 0
        self.put: list[Any] = []
        """References to what is in the store."""

    def write(self, part: Bytes) -> None:
        self._parts.append(part)
        self._held += part.size
        if self._held >= self._size:
            self.flush()

    def flush(self) -> None:
        import ray

        if self._parts:
            self.put.append(ray.put(np.concatenate(self._parts)))
        self._parts, self._held = [], 0


def _joined(chunks: list[Bytes]) -> Bytes:
    """One writable run of bytes: what comes out of the object store is read-only, and torch wants to write."""
    return np.concatenate(chunks) if chunks else np.empty(0, np.uint8)
