"""What trainer and engines tell each other about a version: which one, and the digests of what they hold of it."""

from __future__ import annotations

from dataclasses import dataclass

from rollweave.errors import RollweaveError


class WeightMismatch(RollweaveError):
    """Weights arrived other than they were sent."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    version: int
    checksum: str
    """Of names and contents, whatever the size of the buckets: the same weights have the same checksum."""
    buckets: tuple[str, ...] = ()
    """One digest per bucket, in order."""

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
