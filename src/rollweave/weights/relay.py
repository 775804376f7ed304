"""RelayStore: weights for machines that share no memory. One copy crosses to each machine, however many engines wait.

    trainer ─push─▶ shared memory ····· remote ·····▶ shared memory ─pull─▶ engine
                    of its machine    (buckets)       of theirs     ─pull─▶ engine
                                                                    ─pull─▶ engine

Every machine keeps versions in its own shared memory (`SharedMemoryStore`). An engine that misses one brings it there
bucket by bucket, verified, while the other engines of its machine wait for it; then all of them read it there. What
lies between the machines is a `Remote`: Ray, files, or Mooncake.

A transfer that breaks is tried again from the bucket where it broke, by the next engine too if this one dies: buckets
that have arrived are known by their digests. With `delta`, a bucket of which the machine has the version before is
asked for as a patch of it.
"""

from __future__ import annotations

import fcntl
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rollweave.weights.buckets import Bucket, Bytes, Fingerprint, Into, Manifest, corrupt_bucket
from rollweave.weights.delta import Patch
from rollweave.weights.shared_store import SharedMemoryStore
from rollweave.weights.store import BUCKET_MB, KEPT_VERSIONS, WeightStoreError

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 300.0
"""How long a bucket is tried for. The deadline of the update (`rollout.deadlines.weight_sync`) may be shorter."""

PAUSE_SECONDS = 0.02, 1.0
"""Before it is tried again: at first, and at most; it doubles."""

Parcel = Bytes | Patch
"""A bucket as it travels: its bytes, or what changed."""


class BrokenTransfer(Exception):
    """A transfer that did not succeed, and may the next time."""


@dataclass(frozen=True, slots=True)
class Step:
    """An object in a storage that makes a bucket, or makes a newer one of the bucket before."""

    name: str
    digest: str
    """Of the bucket that it makes."""
    size: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A version that a remote has."""

    manifest: Manifest
    chains: tuple[tuple[Step, ...], ...] = ()
    """By bucket, what makes it, in order; for remotes that keep objects."""


class Remote(Protocol):
    """What lies between the machines."""

    def ready(self) -> None:
        """Waits until what was published before has arrived; raises what went wrong with it."""

    def publish(self, version: int, local: SharedMemoryStore) -> None:
        """Let other machines have a version of this one, at once or in the background."""

    def listing(self, version: int) -> Listing:
        """Raises WeightStoreError if it is not there, BrokenTransfer if it cannot be seen now."""

    def fetch(self, listing: Listing, number: int, have: str) -> Sequence[Parcel]:
        """What makes a bucket: its bytes, or patches of the bucket whose digest is `have`, in order."""

    def latest(self) -> int | None:
        """The newest version that is whole."""

    def close(self) -> None:
        """Remove what it keeps: the session is over."""


class _Replaced(Exception):
    """The version was pushed anew while it was fetched."""


def keep_newest(version: int, versions: Iterable[int]) -> set[int]:
    """For a machine's copies, whose truth is the remote: the version that comes, and the newest others."""
    return {version, *sorted(set(versions) - {version})[1 - KEPT_VERSIONS :]}


@dataclass(slots=True)
class RelayStore:
    folder: Path
    """In the shared memory of the machine where it is used."""
    remote: Remote
    bucket_mb: float = BUCKET_MB
    delta: bool = False
    patience: float = PATIENCE_SECONDS
    _local: SharedMemoryStore = field(init=False)
    _copies: SharedMemoryStore = field(init=False)
    """The same folder; a machine that has copies keeps them otherwise than the trainer's."""

    def __post_init__(self) -> None:
        self._local = SharedMemoryStore(self.folder, self.bucket_mb)
        self._copies = SharedMemoryStore(self.folder, self.bucket_mb, keep_newest)

    def on(self, folder: Path) -> RelayStore:
        """The store as another machine has it."""
        return replace(self, folder=folder)

    def push(self, version: int, tensors: Mapping[str, Any]) -> Fingerprint:
        self.remote.ready()
        fingerprint = self._local.push(version, tensors)
        what = f"version {version} of the weights, on its way to the other machines,"
        self._patiently(lambda: self.remote.publish(version, self._local), what)
        return fingerprint

    def pull(self, version: int, into: Into) -> Fingerprint:
        moved = self._bring(version)
        return replace(self._copies.pull(version, into), moved_bytes=moved)

    def latest(self) -> int | None:
        return self.remote.latest()

    def _bring(self, version: int) -> int:
        """Make sure that this machine has a version; returns how many bytes crossed to it for that."""
        moved = 0
        while True:
            listing = self._patiently(lambda: self.remote.listing(version), f"version {version} of the weights")
            with _alone(self.folder / "relay.lock"):
                if self._has(listing.manifest):
                    return moved
                try:
                    with self._copies.writing(version, listing.manifest.size) as buffer:
                        moved += Fetching(self, listing, buffer.flat).complete()
                        self._copies.add(listing.manifest, buffer)
                    return moved
                except _Replaced:
                    continue

    def _has(self, manifest: Manifest) -> bool:
        version = manifest.fingerprint.version
        return version in self._copies.versions() and self._copies.manifest(version) == manifest

    def _patiently(self, ask: Callable[[], Any], what: str) -> Any:
        """Ask again until there is an answer."""
        began, pause = time.monotonic(), PAUSE_SECONDS[0]
        while True:
            try:
                return ask()
            except BrokenTransfer as error:
                if time.monotonic() - began > self.patience:
                    message = f"{what} did not arrive within {self.patience:.0f} s: {error}"
                    raise WeightStoreError(message) from error
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS[1])

    @contextmanager
    def base(self, manifest: Manifest) -> Iterator[tuple[tuple[str, ...], Bytes] | None]:
        """Of the newest other version here whose buckets lie alike: their digests, and its bytes."""
        others = [v for v in self._copies.versions() if v != manifest.fingerprint.version]
        if not self.delta or not others:
            yield None
            return
        with self._copies.reading(max(others)) as (other, flat):
            yield (other.fingerprint.buckets, flat) if other.is_laid_out_as(manifest) else None


@dataclass(slots=True)
class Fetching:
    """One version on its way to this machine."""

    relay: RelayStore
    listing: Listing
    flat: Bytes
    """Where it goes. It may hold buckets that arrived before the transfer broke."""
    moved: int = 0

    def complete(self) -> int:
        """Returns how many bytes crossed."""
        manifest = self.listing.manifest
        buckets, wanted = manifest.buckets(), manifest.fingerprint.buckets
        missing = [number for number, bucket in enumerate(buckets) if bucket.digest(self.flat) != wanted[number]]
        with self.relay.base(manifest) as base:
            digests, old = base or (("",) * len(buckets), self.flat)
            for number, parcels in _ahead(lambda number: self._fetch(number, digests[number]), missing):
                self._place(buckets[number], parcels, old)
                if buckets[number].digest(self.flat) != wanted[number]:
                    self._place(buckets[number], self._fetch(number, ""), old)  # it may have suffered on its way
                if (digest := buckets[number].digest(self.flat)) != wanted[number]:
                    raise corrupt_bucket(manifest, number, digest)
        if base is not None and self.moved >= manifest.size:
            log.warning(
                "weights.delta: no patch of version %d is smaller than its bucket; it came whole (float32 weights "
                "change completely with every step)",
                manifest.fingerprint.version,
            )
        return self.moved

    def _place(self, bucket: Bucket, parcels: Sequence[Parcel], old: Bytes) -> None:
        target = bucket.of(self.flat)
        if not parcels or isinstance(parcels[0], Patch):
            target[...] = bucket.of(old)
        for parcel in parcels:
            self.moved += parcel.nbytes
            if isinstance(parcel, Patch):
                parcel.apply(target)
            else:
                target[...] = parcel

    def _fetch(self, number: int, have: str) -> Sequence[Parcel]:
        """`have`: the digest of the bucket that this machine has in its place, if any."""
        fingerprint = self.listing.manifest.fingerprint
        if have == fingerprint.buckets[number]:
            return ()
        what = f"bucket {number} of {len(fingerprint.buckets)} of weights version {fingerprint.version}"
        answer: Sequence[Parcel] = self.relay._patiently(lambda: self._ask(number, have), what)
        return answer

    def _ask(self, number: int, have: str) -> Sequence[Parcel]:
        try:
            return self.relay.remote.fetch(self.listing, number, have)
        except BrokenTransfer:
            if self.relay.remote.listing(self.listing.manifest.fingerprint.version) != self.listing:
                raise _Replaced from None
            raise


def _ahead(fetch: Callable[[int], Sequence[Parcel]], numbers: Iterable[int]) -> Iterator[tuple[int, Sequence[Parcel]]]:
    """Fetch in order, the next one while the caller handles this one."""
    coming: deque[tuple[int, Future[Sequence[Parcel]]]] = deque()
    with ThreadPoolExecutor(1, "weights") as thread:
        for number in numbers:
            coming.append((number, thread.submit(fetch, number)))
            if len(coming) > 1:
                number, parcels = coming.popleft()
                yield number, parcels.result()
        while coming:
            number, parcels = coming.popleft()
            yield number, parcels.result()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process of this machine at a time; the others wait."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
