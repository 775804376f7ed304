"""A version of the weights as it travels: one run of bytes, cut into buckets, each with a digest.

Tensors lie one after the other, by name. A bucket is a stretch of about `bucket_bytes` of them; a large tensor spans
several. Buckets end at the digest's own blocks, so that one reading gives both the digests of the buckets and the
checksum of the whole, which does not depend on how it was cut.

    tensors  | embed_tokens            | layers.0.q_proj | layers.0.k_proj | ...
    buckets  |---- 0 ----|---- 1 ----|---- 2 ----|---- 3 ...

A tensor is bytes and the name of their type. Neither the store nor the digests look inside the bytes: NumPy has no
bfloat16 and no float8, and such weights travel all the same. Only the engine that receives them makes tensors of them.

For a digest, every tensor is read as 64-bit words in blocks; a block's digest is the wrapping sum of its words, each
times an odd number of its own. A changed bit changes a word by a power of two, and an odd multiple of that is never
zero modulo 2^64, so it always shows; different multipliers make exchanged words show too. That runs at memory speed.
Only the few block digests, with each tensor's name, type and shape, go through a cryptographic hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollweave.errors import RollweaveError

BLOCK_WORDS = 1 << 14
BLOCK_BYTES = 8 * BLOCK_WORDS

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    """A tensor as it travels."""

    dtype: str
    """As torch and NumPy call it: `float32`, `bfloat16`, `float8_e4m3fn`."""
    shape: tuple[int, ...]
    data: Bytes

    @classmethod
    def of(cls, tensor: Any) -> RawTensor:
        """Of a torch tensor or a NumPy array: a view of its bytes where they are contiguous, else a copy."""
        if isinstance(tensor, np.ndarray):
            return cls(str(tensor.dtype), tensor.shape, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8))
        from rollweave.crossing import bits

        data: Bytes = bits(tensor).reshape(-1).view(np.uint8)
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)


def checksum(tensors: Mapping[str, Any]) -> str:
    """A digest of names and contents (torch tensors or numpy arrays), whatever the order of the mapping."""
    digest = hash_of_blocks()
    for name in sorted(tensors):
        tensor = RawTensor.of(tensors[name])
        digest.update(header(name, tensor.dtype, tensor.shape))
        digest.update(block_digests(tensor.data).tobytes())
    return digest.hexdigest()


def hash_of_blocks() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8)


def header(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What goes into the hash before a tensor's blocks."""
    return f"{name} {dtype} {shape} ".encode()


def block_digests(flat: Bytes) -> NDArray[np.uint64]:
    """One number per block of 128 KiB; the last block may be shorter."""
    whole = flat.size // 8 * 8
    words = flat[:whole].view(np.uint64)
    if whole < flat.size:
        rest = np.zeros(8, np.uint8)
        rest[: flat.size - whole] = flat[whole:]
        words = np.concatenate([words, rest.view(np.uint64)])
    full = words.size // BLOCK_WORDS * BLOCK_WORDS
    multipliers = _multipliers()
    digests: NDArray[np.uint64] = words[:full].reshape(-1, BLOCK_WORDS) @ multipliers
    if full < words.size:
        last = words[full:] @ multipliers[: words.size - full]
        digests = np.append(digests, last)
    return digests


@cache
def _multipliers() -> NDArray[np.uint64]:
    # PCG64 with a fixed seed: numpy keeps the stream of a bit generator stable across versions.
    return np.random.PCG64(20_240_607).random_raw(BLOCK_WORDS) | np.uint64(1)


class WeightMismatch(RollweaveError):
    """Weights arrived other than they were sent."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What trainer and engines tell each other about a version: the digests of what they hold of it."""

    version: int
    checksum: str
    """Of names and contents, whatever the size of the buckets: the same weights have the same checksum."""
    buckets: tuple[str, ...] = ()
    """One digest per bucket, in order."""
    probe: tuple[float, ...] = ()
    """How the trainer scores the probe with it (see `rollweave.weights.probe`); none: it does not say."""
    moved_bytes: int = field(default=0, compare=False)
    """What crossed to this machine for a pull; nothing, if it was here already."""

    def differs(self, other: Fingerprint) -> str:
        """Where another one differs first, in words; empty if nowhere."""
        if self.version != other.version:
            return f"version {other.version} instead of {self.version}"
        if len(self.buckets) != len(other.buckets):
            return f"{len(other.buckets)} buckets instead of {len(self.buckets)}"
        for number, (ours, theirs) in enumerate(zip(self.buckets, other.buckets, strict=True)):
            if ours != theirs:
                return f"bucket {number} of {len(self.buckets)}: {theirs} instead of {ours}"
        return "" if self.checksum == other.checksum else f"checksum {other.checksum} instead of {self.checksum}"


ALIGNMENT = 64
"""Of every tensor's first byte, as copies like it."""

STEP_BYTES = 8 * BLOCK_BYTES
"""Copied and digested together, while it is in the processor's cache: that is little slower than the copy alone."""

Into = Callable[[str, RawTensor], None]
"""Takes a tensor (its Hugging Face name, its bytes). They must be copied before the call returns."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor and its place among the bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a tensor's bytes."""

    tensor: Placed
    first: int
    last: int

    @property
    def start(self) -> int:
        """Among all bytes of the version."""
        return self.tensor.start + self.first

    @property
    def end(self) -> int:
        return self.tensor.start + self.last


@dataclass(frozen=True, slots=True)
class Bucket:
    """The part of a version that travels at once. Its bytes lie together."""

    pieces: tuple[Piece, ...]

    @property
    def start(self) -> int:
        return self.pieces[0].start

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    def of(self, flat: Bytes) -> Bytes:
        """Its bytes among those of the version."""
        return flat[self.start : self.end]

    def digest(self, flat: Bytes) -> str:
        return _Tally().add(self, lambda piece: steps(flat[piece.start : piece.end]))

    def __str__(self) -> str:
        first, last = self.pieces[0].tensor.name, self.pieces[-1].tensor.name
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a pushed version but its bytes."""

    fingerprint: Fingerprint
    tensors: tuple[Placed, ...]
    bucket_bytes: int

    @property
    def size(self) -> int:
        """Of all its bytes."""
        return _end(self.tensors)

    def buckets(self) -> list[Bucket]:
        return list(_cut(self.tensors, self.bucket_bytes))

    def is_laid_out_as(self, other: Manifest) -> bool:
        """Whether each bucket of the one lies where it lies in the other."""
        return (self.tensors, self.bucket_bytes) == (other.tensors, other.bucket_bytes)


class Packing:
    """Tensors that are about to become a version. One of them at a time is brought to this process's memory, if it is
    elsewhere: a model on a device is never held here as a whole."""

    def __init__(self, tensors: Mapping[str, Any], bucket_bytes: int) -> None:
        self._tensors = tensors
        self._layout = tuple(_lay_out(tensors))
        self._bucket_bytes = bucket_bytes
        self._source: tuple[str, Bytes] = "", np.empty(0, np.uint8)

    @property
    def size(self) -> int:
        """In bytes."""
        return _end(self._layout)

    def copy_to(self, flat: Bytes, version: int) -> Manifest:
        """Digests are of what the trainer holds, not of what was written."""
        tally = _Tally()
        for bucket in _cut(self._layout, self._bucket_bytes):
            tally.add(bucket, lambda piece: self._copied(piece, flat))
        return Manifest(tally.fingerprint(version), self._layout, self._bucket_bytes)

    def _copied(self, piece: Piece, flat: Bytes) -> Iterator[Bytes]:
        """The steps of a piece, each once it has been copied."""
        name, start = piece.tensor.name, piece.start
        if self._source[0] != name or not piece.first:
            self._source = name, RawTensor.of(self._tensors[name]).data
        for step in steps(self._source[1][piece.first : piece.last]):
            flat[start : start + step.size] = step
            start += step.size
            yield step


def unpack(manifest: Manifest, flat: Bytes, into: Into) -> Fingerprint:
    """Verify bucket by bucket and hand over each tensor as its last byte is verified; returns what was found."""
    pushed, tally = manifest.fingerprint, _Tally()
    for number, bucket in enumerate(_cut(manifest.tensors, manifest.bucket_bytes)):
        digest = tally.add(bucket, lambda piece: steps(flat[piece.start : piece.end]))
        if digest != pushed.buckets[number]:
            raise corrupt_bucket(manifest, number, digest)
        for tensor in (piece.tensor for piece in bucket.pieces if piece.last == piece.tensor.size):
            data = flat[tensor.start : tensor.start + tensor.size]
            into(tensor.name, RawTensor(tensor.dtype, tensor.shape, data))
    return tally.fingerprint(pushed.version)


def corrupt_bucket(manifest: Manifest, number: int, digest: str) -> WeightMismatch:
    pushed = manifest.fingerprint
    return WeightMismatch(
        f"bucket {number} of {len(pushed.buckets)} of weights version {pushed.version} is corrupt "
        f"({manifest.buckets()[number]}): its digest is {digest}, it was pushed with {pushed.buckets[number]}; the run "
        "stops before anything is drawn from it"
    )


def steps(data: Bytes) -> Iterator[Bytes]:
    """The bytes of a piece in order; also none are a step, so that a tensor without values has a digest."""
    for start in range(0, max(1, data.size), STEP_BYTES):
        yield data[start : start + STEP_BYTES]


def _lay_out(tensors: Mapping[str, Any]) -> Iterator[Placed]:
    end = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + tensor.nbytes
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield Placed(name, dtype, tuple(tensor.shape), start, tensor.nbytes)


def _end(layout: Sequence[Placed]) -> int:
    return layout[-1].start + layout[-1].size if layout else 0


def _cut(layout: Sequence[Placed], bucket_bytes: int) -> Iterator[Bucket]:
    """Each has `bucket_bytes`, or a little more: a tensor is only cut between blocks of the digest."""
    limit = max(BLOCK_BYTES, bucket_bytes)
    pieces: list[Piece] = []
    room = limit
    for tensor in layout:
        last = -1
        while last < tensor.size:
            first = max(0, last)
            last = min(tensor.size, first + max(1, room // BLOCK_BYTES) * BLOCK_BYTES)
            pieces.append(Piece(tensor, first, last))
            room -= last - first
            if room <= 0:
                yield Bucket(tuple(pieces))
                pieces, room = [], limit
    if pieces:
        yield Bucket(tuple(pieces))


class _Tally:
    """Digests of the buckets that pass by, and of all of them together."""

    def __init__(self) -> None:
        self._whole = hash_of_blocks()
        self._buckets: list[str] = []

    def add(self, bucket: Bucket, steps_of: Callable[[Piece], Iterator[Bytes]]) -> str:
        own = hash_of_blocks()
        for piece in bucket.pieces:
            tensor = piece.tensor
            head = header(tensor.name, tensor.dtype, tensor.shape)
            blocks = b"".join(block_digests(step).tobytes() for step in steps_of(piece))
            own.update(head + blocks)
            self._whole.update(blocks if piece.first else head + blocks)
        self._buckets.append(own.hexdigest())
        return self._buckets[-1]

    def fingerprint(self, version: int) -> Fingerprint:
        return Fingerprint(version, self._whole.hexdigest(), tuple(self._buckets))
