"""What lies between machines on Ray: an actor on the trainer's node that hands out buckets of what is pushed there.

A bucket passes through Ray's object store on its way, and no longer: at rest a version lies in the shared memory of the
trainer's node, where it outlives the trainer's process. Patches are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollweave.weights.buckets import Bytes, Fingerprint, Manifest
from rollweave.weights.delta import Patch, patch_between
from rollweave.weights.relay import BrokenTransfer, Listing, Parcel
from rollweave.weights.shared_store import SharedMemoryStore
from rollweave.weights.store import WeightsLost, WeightStoreError


class WeightServer:
    """The actor on the trainer's node."""

    def __init__(self, folder: Path) -> None:
        self._store = SharedMemoryStore(folder)

    def manifest(self, version: int) -> Manifest:
        return self._store.manifest(version)

    def latest(self) -> int | None:
        return self._store.latest()

    def bucket(self, wanted: Fingerprint, number: int, have: str) -> Parcel:
        with self._store.reading(wanted.version) as (manifest, flat):
            if manifest.fingerprint != wanted:
                raise BrokenTransfer(f"version {wanted.version} of the weights has been pushed anew")
            bucket = manifest.buckets()[number]
            new = np.asarray(bucket.of(flat))
            patch = self._patch(manifest, number, have, new) if have else None
            return new.copy() if patch is None else patch  # Ray takes it after the lock has ended

    def _patch(self, manifest: Manifest, number: int, have: str, new: Bytes) -> Patch | None:
        """Of the bucket with the digest `have`, if it is still here."""
        for version in self._store.versions():
            with suppress(WeightStoreError), self._store.reading(version) as (before, flat):
                if before.is_laid_out_as(manifest) and before.fingerprint.buckets[number] == have:
                    return patch_between(before.buckets()[number].of(flat), new)
        return None


@dataclass(frozen=True, slots=True)
class RayRemote:
    server: Any
    """The handle of the run's `WeightServer`."""

    def ready(self) -> None:
        pass

    def publish(self, version: int, local: SharedMemoryStore) -> None:
        """The server looks into the same folder."""

    def listing(self, version: int) -> Listing:
        return Listing(self._ask("manifest", version))

    def fetch(self, listing: Listing, number: int, have: str) -> Sequence[Parcel]:
        return [self._ask("bucket", listing.manifest.fingerprint, number, have)]

    def latest(self) -> int | None:
        newest: int | None = self._ask("latest")
        return newest

    def close(self) -> None:
        pass

    def _ask(self, method: str, *arguments: Any) -> Any:
        import ray
        from ray.exceptions import ActorDiedError, ActorUnavailableError, ObjectStoreFullError, RayError, RayTaskError

        try:
            return ray.get(getattr(self.server, method).remote(*arguments))
        except RayTaskError as error:
            if isinstance(error.cause, ObjectStoreFullError):
                raise WeightStoreError(
                    "a bucket of the weights does not fit into the object store of the trainer's node: give it more "
                    "room (ray start --object-store-memory BYTES), or make weights.bucket_mb smaller"
                ) from error
            raise error.cause from error
        except ActorUnavailableError as error:
            raise BrokenTransfer(f"the trainer's node does not answer: {error}") from error
        except ActorDiedError as error:
            raise WeightsLost(f"the weights are lost with the node of the trainer: {error}") from error
        except RayError as error:  # what was on its way is lost, or its node is out of reach
            raise BrokenTransfer(str(error)) from error
