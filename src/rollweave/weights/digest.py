"""The checksum by which trainer, store and engines agree on which weights they hold.

Every tensor is read as 64-bit words in buckets; a bucket's digest is the wrapping sum of its words, each times an odd
number of its own. A changed bit changes a word by a power of two, and an odd multiple of that is never zero modulo
2^64, so it always shows; different multipliers make exchanged words show too. That runs at memory speed. Only the
few bucket digests, with each tensor's name, type and shape, go through a cryptographic hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BUCKET_WORDS = 1 << 14


def checksum(tensors: Mapping[str, Any]) -> str:
    """A digest of names and contents (torch tensors or numpy arrays), whatever the order of the mapping."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        array = _as_array(tensors[name])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(bucket_digests(array).tobytes())
    return digest.hexdigest()


def bucket_digests(array: NDArray[Any]) -> NDArray[np.uint64]:
    """One number per bucket of 128 KiB; the last bucket may be shorter."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = flat.size // 8 * 8
    words = flat[:whole].view(np.uint64)
    if whole < flat.size:
        rest = np.zeros(8, np.uint8)
        rest[: flat.size - whole] = flat[whole:]
        words = np.concatenate([words, rest.view(np.uint64)])
    full = words.size // BUCKET_WORDS * BUCKET_WORDS
    multipliers = _multipliers()
    digests: NDArray[np.uint64] = words[:full].reshape(-1, BUCKET_WORDS) @ multipliers
    if full < words.size:
        last = words[full:] @ multipliers[: words.size - full]
        digests = np.append(digests, last)
    return digests


@cache
def _multipliers() -> NDArray[np.uint64]:
    # PCG64 with a fixed seed: numpy keeps the stream of a bit generator stable across versions.
    return np.random.PCG64(20_240_607).random_raw(BUCKET_WORDS) | np.uint64(1)


def _as_array(tensor: Any) -> NDArray[Any]:
    if isinstance(tensor, np.ndarray):
        return tensor
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array
