"""What changed between two versions of a bucket, byte by byte.

A patch is exact, for every type of number: it compares bytes, not values. In bfloat16 a small step of the optimiser
leaves most values as they were, and of those that change mostly one byte of two; in float32 it changes all of them, and
no patch is smaller than the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollweave.weights.buckets import Bytes

LARGEST_GAP = 2**16 - 1
CHANGE_BYTES = 3
"""A gap and a value."""


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    gaps: NDArray[np.uint16]
    """From each changed byte to the next; the first from the beginning."""
    values: Bytes

    @property
    def nbytes(self) -> int:
        return self.gaps.nbytes + self.values.nbytes

    def apply(self, data: Bytes) -> None:
        data[np.cumsum(self.gaps, dtype=np.int64)] = self.values


def patch_between(old: Bytes, new: Bytes) -> Patch | None:
    """None, if it would not be smaller than the new bytes."""
    changed = old != new
    count = np.count_nonzero(changed)
    if CHANGE_BYTES * (count + new.size // LARGEST_GAP) >= new.size:
        return None
    positions = np.flatnonzero(changed)
    gaps = np.diff(positions, prepend=0)
    if count and gaps.max() > LARGEST_GAP:  # bytes in between that have not changed make the gaps small enough
        positions = np.union1d(positions, np.arange(LARGEST_GAP, positions[-1], LARGEST_GAP))
        gaps = np.diff(positions, prepend=0)
    return Patch(gaps.astype(np.uint16), new[positions])
