"""Versions of the weights as objects in a storage: files behind a URL, or Mooncake.

Every bucket has a chain of objects: one with all of its bytes, and with `delta` some patches after it. A machine that
has the bucket before asks for the last patch only. A chain whose patches are together as large as half of the bucket is
begun anew, so that a machine that has nothing never fetches much more than one copy.

Objects are safetensors files. The index names those of each version, and is replaced at once when all are there.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import TensorSpec, deserialize, serialize

from rollweave.weights.buckets import Bucket, Bytes, Piece
from rollweave.weights.delta import Patch, patch_between
from rollweave.weights.relay import BrokenTransfer, Listing, Parcel, Step
from rollweave.weights.shared_store import SharedMemoryStore
from rollweave.weights.store import WeightStoreError, kept_versions, missing_version, version_name

log = logging.getLogger(__name__)

INDEX = "index.json"
CHAIN_SHARE = 0.5
"""Of a bucket: as much may its patches hold together."""


class ObjectStorage(Protocol):
    """Bytes by name. Raises WeightStoreError for what a user can fix, BrokenTransfer for what may heal."""

    def open(self, size: int) -> None:
        """Called before the first `put` of a process, with the size of a version."""

    def put(self, name: str, data: bytes) -> None:
        """What has this name already is replaced, at once."""

    def get(self, name: str) -> bytes | None: ...

    def drop(self, names: Iterable[str]) -> None:
        """Also names that are not there."""

    def clear(self) -> None:
        """Drop everything."""


@dataclass(frozen=True, slots=True)
class Index:
    """Which versions a storage has."""

    versions: dict[int, Listing] = field(default_factory=dict)
    coming: int | None = None
    """It is being stored."""
    failure: str = ""
    """Why it does not come."""

    def names(self) -> set[str]:
        return {step.name for listing in self.versions.values() for chain in listing.chains for step in chain}


_INDEX = TypeAdapter(Index)


@dataclass(slots=True)
class ObjectRemote:
    storage: ObjectStorage
    delta: bool = False
    _storing: Future[None] | None = None
    _thread: ThreadPoolExecutor | None = None
    """What stores versions in the background; the trainer trains meanwhile."""

    def ready(self) -> None:
        if self._storing is not None:
            storing, self._storing = self._storing, None
            storing.result()

    def publish(self, version: int, local: SharedMemoryStore) -> None:
        before = self._index()
        stays = kept_versions(version, (*before.versions, version)) - {version}
        after = Index({kept: before.versions[kept] for kept in stays}, coming=version)
        self.storage.open(local.manifest(version).size)
        self._write(after)
        self._thread = self._thread or ThreadPoolExecutor(1, "weights")
        self._storing = self._thread.submit(self._store, version, local, before, after)

    def listing(self, version: int) -> Listing:
        index = self._index()
        if version in index.versions:
            return index.versions[version]
        if version != index.coming:
            raise missing_version(version, index.versions)
        if index.failure:
            raise WeightStoreError(f"version {version} of the weights could not be stored: {index.failure}")
        raise BrokenTransfer("the trainer is still storing it")

    def fetch(self, listing: Listing, number: int, have: str) -> Sequence[Parcel]:
        chain = listing.chains[number]
        known = [place for place, step in enumerate(chain, 1) if step.digest == have]
        bucket = listing.manifest.buckets()[number]
        return [self._get(step, bucket) for step in chain[max(known, default=0) :]]

    def latest(self) -> int | None:
        self.ready()
        return max(self._index().versions, default=None)

    def close(self) -> None:
        self.storage.clear()

    def _index(self) -> Index:
        data = self.storage.get(INDEX)
        return Index() if data is None else _INDEX.validate_json(data)

    def _write(self, index: Index) -> None:
        self.storage.put(INDEX, _INDEX.dump_json(index))

    # --------------------------------------------------------------------------------------------------- storing

    def _store(self, version: int, local: SharedMemoryStore, before: Index, after: Index) -> None:
        try:
            listing = self._stored(version, local, after.versions)
        except Exception as error:  # a boundary: the thread's. It is raised by the next push; engines are told now.
            self._write(replace(after, failure=str(error)))
            raise
        now = Index({**after.versions, version: listing})
        self._write(now)
        self.storage.drop(before.names() - now.names())

    def _stored(self, version: int, local: SharedMemoryStore, others: dict[int, Listing]) -> Listing:
        """Store a version, as patches of the one before if that is in both stores."""
        with ExitStack() as reading:
            manifest, new = reading.enter_context(local.reading(version))
            chains: Sequence[tuple[Step, ...]] = ((),) * len(manifest.fingerprint.buckets)
            old = new
            base = max(set(others) & set(local.versions()), default=None) if self.delta else None
            if base is not None:
                before, old = reading.enter_context(local.reading(base))
                if before == others[base].manifest and before.is_laid_out_as(manifest):
                    chains = others[base].chains
            folder = f"{version_name(version)}-{secrets.token_hex(4)}"
            storing = _Storing(self.storage, folder, old, new)
            made = [
                storing.chain(number, bucket, digest, chain)
                for number, (bucket, digest, chain) in enumerate(
                    zip(manifest.buckets(), manifest.fingerprint.buckets, chains, strict=True)
                )
            ]
        return Listing(manifest, tuple(made))

    def _get(self, step: Step, bucket: Bucket) -> Parcel:
        data = self.storage.get(step.name)
        if data is None:
            raise BrokenTransfer(f"{step.name} is not in the storage")
        try:
            tensors: _Tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]
            return _patch(tensors) if "gaps" in tensors else _bucket(tensors, bucket)
        except Exception as error:  # a boundary: safetensors raises its own errors for a file that is cut short
            raise BrokenTransfer(f"{step.name} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Storing:
    storage: ObjectStorage
    folder: str
    old: Bytes
    new: Bytes

    def chain(self, number: int, bucket: Bucket, digest: str, before: tuple[Step, ...]) -> tuple[Step, ...]:
        """The bucket's chain, once what it lacks is stored."""
        if before and before[-1].digest == digest:
            return before
        name = f"{self.folder}/{number:05}.safetensors"
        patch = patch_between(bucket.of(self.old), bucket.of(self.new)) if before else None
        if patch is not None:
            patches = sum(step.size for step in before[1:]) + patch.nbytes
            if patches <= CHAIN_SHARE * bucket.of(self.new).size:
                data = _file({"gaps": _spec("uint16", patch.gaps), "values": _spec("uint8", patch.values)})
                self.storage.put(name, data)
                return (*before, Step(name, digest, patch.nbytes))
        self.storage.put(name, _file({_name(piece): _piece_spec(piece, self.new) for piece in bucket.pieces}))
        return (Step(name, digest, bucket.of(self.new).size),)


# --------------------------------------------------------------------------------------------------- safetensors

_Tensors = dict[str, dict[str, bytes]]


def _file(tensors: dict[str, TensorSpec]) -> bytes:
    return bytes(serialize(tensors))


def _spec(dtype: str, data: NDArray[Any], shape: tuple[int, ...] | None = None) -> TensorSpec:
    """`data` must live until the file is made."""
    return TensorSpec(dtype=dtype, shape=shape or data.shape, data_ptr=data.ctypes.data, data_len=data.nbytes)


def _name(piece: Piece) -> str:
    """A tensor that lies in several buckets has a part in the file of each."""
    whole = (piece.first, piece.last) == (0, piece.tensor.size)
    return piece.tensor.name if whole else f"{piece.tensor.name}[{piece.first}:{piece.last}]"


def _piece_spec(piece: Piece, flat: Bytes) -> TensorSpec:
    data, tensor = flat[piece.start : piece.end], piece.tensor
    if piece.last - piece.first == tensor.size:
        return TensorSpec(dtype=tensor.dtype, shape=tensor.shape, data_ptr=data.ctypes.data, data_len=data.nbytes)
    return _spec("uint8", data)


def _patch(tensors: _Tensors) -> Patch:
    gaps, values = (np.frombuffer(tensors[name]["data"], np.uint8) for name in ("gaps", "values"))
    return Patch(gaps.view(np.uint16), values)


def _bucket(tensors: _Tensors, bucket: Bucket) -> Bytes:
    data = np.zeros(bucket.end - bucket.start, np.uint8)
    for piece in bucket.pieces:
        found = np.frombuffer(tensors[_name(piece)]["data"], np.uint8)
        data[piece.start - bucket.start : piece.end - bucket.start] = found
    return data
