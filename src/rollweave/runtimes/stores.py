"""The weight store that a job on Ray asks for (`weights.store`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollweave.config.job import Job
from rollweave.weights.file_storage import FileStorage
from rollweave.weights.mooncake_storage import MooncakeStorage
from rollweave.weights.objects import ObjectRemote, ObjectStorage
from rollweave.weights.ray_store import RayRemote
from rollweave.weights.relay import RelayStore, Remote
from rollweave.weights.shared_store import SharedMemoryStore
from rollweave.weights.store import WeightStore


def make_store(job: Job, folder: Path, start_server: Callable[[], Any]) -> WeightStore:
    """`folder`: in the shared memory of the trainer's machine, of this session alone. `start_server`: starts the actor
    that hands out weights, if there must be one."""
    config, kind = job.weights, job.weight_store
    if kind == "shared_memory":
        return SharedMemoryStore(folder, config.bucket_mb)
    remote: Remote
    if kind == "ray":
        remote = RayRemote(start_server())
    else:
        remote = ObjectRemote(_storage(kind, config.url, folder.name), config.delta)
    return RelayStore(folder, remote, config.bucket_mb, config.delta)


def _storage(kind: str, url: str, session: str) -> ObjectStorage:
    """What belongs to one session, so that no other finds its versions there."""
    if kind == "mooncake":
        return MooncakeStorage(url, session)
    return FileStorage(f"{url.rstrip('/')}/{session}")


def close_store(store: WeightStore) -> None:
    """Remove what it has left elsewhere."""
    if isinstance(store, RelayStore):
        store.remote.close()
