"""A version of the weights as it travels: one run of bytes, cut into buckets, each with a digest.

Tensors lie one after the other, by name. A bucket is a stretch of about `bucket_bytes` of them; a large tensor spans
several. Buckets end at the digest's own blocks, so that one reading gives both the digests of the buckets and the
checksum of the whole, which does not depend on how it was cut.

    tensors  | embed_tokens            | layers.0.q_proj | layers.0.k_proj | ...
    buckets  |---- 0 ----|---- 1 ----|---- 2 ----|---- 3 ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollweave.weights.digest import BLOCK_BYTES, as_array, as_bytes, block_digests, hash_of_blocks, header
from rollweave.weights.fingerprint import Fingerprint, WeightMismatch

ALIGNMENT = 64
"""Of every tensor's first byte, as copies like it."""

Bytes = NDArray[np.uint8]
Into = Callable[[str, Any], None]
"""Takes a tensor (its Hugging Face name, a torch tensor or numpy array). It must be copied before the call returns."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor and its place among the bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def view(self, flat: Bytes) -> NDArray[Any]:
        return flat[self.start : self.start + self.size].view(self.dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a tensor's bytes."""

    tensor: Placed
    first: int
    last: int

    @property
    def ends_tensor(self) -> bool:
        return self.last == self.tensor.size


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a pushed version but its bytes."""

    fingerprint: Fingerprint
    tensors: tuple[Placed, ...]
    bucket_bytes: int


def pack(version: int, tensors: Mapping[str, Any], bucket_bytes: int, write: Callable[[Bytes], object]) -> Manifest:
    """Write a version's bytes in order. Digests are of what the trainer holds, not of what was written."""
    arrays = {name: as_array(tensors[name]) for name in sorted(tensors)}
    layout = _lay_out(arrays)
    sources = {name: as_bytes(array) for name, array in arrays.items()}
    tally = _Tally()
    written = 0
    for bucket in _cut(layout, bucket_bytes):
        for piece in bucket:
            if gap := piece.tensor.start + piece.first - written:
                write(np.zeros(gap, np.uint8))
            write(sources[piece.tensor.name][piece.first : piece.last])
            written = piece.tensor.start + piece.last
        tally.add(bucket, lambda piece: sources[piece.tensor.name][piece.first : piece.last])
    return Manifest(tally.fingerprint(version), tuple(layout), bucket_bytes)


def unpack(manifest: Manifest, flat: Bytes, into: Into) -> Fingerprint:
    """Verify bucket by bucket and hand over each tensor as its last byte is verified; returns what was found."""
    pushed, tally = manifest.fingerprint, _Tally()
    for number, bucket in enumerate(_cut(manifest.tensors, manifest.bucket_bytes)):
        digest = tally.add(
            bucket, lambda piece: flat[piece.tensor.start + piece.first : piece.tensor.start + piece.last]
        )
        if digest != pushed.buckets[number]:
            raise WeightMismatch(
                f"bucket {number} of {len(pushed.buckets)} of weights version {pushed.version} is corrupt "
                f"({_contents(bucket)}): its digest is {digest}, it was pushed with {pushed.buckets[number]}; the run "
                "stops before anything is drawn from it"
            )
        for piece in bucket:
            if piece.ends_tensor:
                into(piece.tensor.name, piece.tensor.view(flat))
    return tally.fingerprint(pushed.version)


def _lay_out(arrays: Mapping[str, NDArray[Any]]) -> list[Placed]:
    layout, end = [], 0
    for name, array in arrays.items():
        start = -(-end // ALIGNMENT) * ALIGNMENT
        layout.append(Placed(name, str(array.dtype), array.shape, start))
        end = start + array.nbytes
    return layout


def _cut(layout: Sequence[Placed], bucket_bytes: int) -> Iterator[list[Piece]]:
    """Lists of pieces, `bucket_bytes` together or a little more: a tensor is only cut between blocks of the digest."""
    limit = max(BLOCK_BYTES, bucket_bytes)
    bucket: list[Piece] = []
    room = limit
    for tensor in layout:
        last = -1
        while last < tensor.size:
            first = max(0, last)
            last = min(tensor.size, first + max(1, room // BLOCK_BYTES) * BLOCK_BYTES)
            bucket.append(Piece(tensor, first, last))
            room -= last - first
            if room <= 0:
                yield bucket
                bucket, room = [], limit
    if bucket:
        yield bucket


def _contents(bucket: list[Piece]) -> str:
    names = [piece.tensor.name for piece in bucket]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


class _Tally:
    """Digests of the buckets that pass by, and of all of them together."""

    def __init__(self) -> None:
        self._whole = hash_of_blocks()
        self._buckets: list[str] = []

    def add(self, bucket: list[Piece], bytes_of: Callable[[Piece], Bytes]) -> str:
        own = hash_of_blocks()
        for piece in bucket:
            tensor = piece.tensor
            head = header(tensor.name, tensor.dtype, tensor.shape)
            blocks = block_digests(bytes_of(piece)).tobytes()
            own.update(head + blocks)
            self._whole.update(blocks if piece.first else head + blocks)
        self._buckets.append(own.hexdigest())
        return self._buckets[-1]

    def fingerprint(self, version: int) -> Fingerprint:
        return Fingerprint(version, self._whole.hexdigest(), tuple(self._buckets))
