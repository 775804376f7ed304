"""The checksum by which trainer, store and engines agree on which weights they hold.

Every tensor is read as 64-bit words in blocks; a block's digest is the wrapping sum of its words, each times an odd
number of its own. A changed bit changes a word by a power of two, and an odd multiple of that is never zero modulo
2^64, so it always shows; different multipliers make exchanged words show too. That runs at memory speed. Only the
few block digests, with each tensor's name, type and shape, go through a cryptographic hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_WORDS = 1 << 14
BLOCK_BYTES = 8 * BLOCK_WORDS


def checksum(tensors: Mapping[str, Any]) -> str:
    """A digest of names and contents (torch tensors or numpy arrays), whatever the order of the mapping."""
    digest = hash_of_blocks()
    for name in sorted(tensors):
        array = as_array(tensors[name])
        digest.update(header(name, str(array.dtype), array.shape))
        digest.update(block_digests(array).tobytes())
    return digest.hexdigest()


def hash_of_blocks() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8)


def header(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What goes into the hash before a tensor's blocks."""
    return f"{name} {dtype} {shape} ".encode()


def block_digests(array: NDArray[Any]) -> NDArray[np.uint64]:
    """One number per block of 128 KiB; the last block may be shorter."""
    flat = as_bytes(array)
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


def as_array(tensor: Any) -> NDArray[Any]:
    if isinstance(tensor, np.ndarray):
        return tensor
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """A view where the array is contiguous, else a copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@cache
def _multipliers() -> NDArray[np.uint64]:
    # PCG64 with a fixed seed: numpy keeps the stream of a bit generator stable across versions.
    return np.random.PCG64(20_240_607).random_raw(BLOCK_WORDS) | np.uint64(1)
