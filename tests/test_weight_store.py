"""The weight store: buckets, digests, versions that are there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.weight_store import BUCKET_MB, array_of, pulled, tensors
from rollweave.weights import buckets, store
from rollweave.weights.buckets import BLOCK_BYTES, Fingerprint, WeightMismatch, checksum
from rollweave.weights.store import SharedMemoryStore, WeightStoreError

# ------------------------------------------------------------------------------------------------------ corruption


@pytest.mark.parametrize("place", [0, BLOCK_BYTES - 1, BLOCK_BYTES, 239_999])
def test_a_flipped_bit_names_its_bucket_and_nothing_of_it_is_handed_over(place: int, tmp_path: Path) -> None:
    shared = SharedMemoryStore(tmp_path, BUCKET_MB)
    shared.push(3, tensors())
    (data,) = tmp_path.glob("*.weights")
    contents = bytearray(data.read_bytes())
    contents[place] ^= 4
    data.write_bytes(contents)
    handed: list[str] = []
    with pytest.raises(WeightMismatch, match=rf"bucket {place // BLOCK_BYTES} of 2 of weights version 3 .*embed"):
        shared.pull(3, lambda name, tensor: handed.append(name))
    assert handed == []


def test_digests_are_of_what_the_trainer_holds_not_of_what_was_written() -> None:
    """A fault on the way into the store is seen too."""
    written: list[np.ndarray] = []

    def write(part: np.ndarray) -> None:
        written.append(part.copy())
        written[-1][:1] ^= 1

    manifest = buckets.pack(1, {"w": np.ones(8, np.float32)}, BLOCK_BYTES, write)
    with pytest.raises(WeightMismatch, match="bucket 0 of 1 of weights version 1"):
        buckets.unpack(manifest, np.concatenate(written), lambda name, tensor: None)


def test_fingerprints_say_where_they_differ() -> None:
    one = Fingerprint(4, "aa", ("x", "y"))
    assert one.differs(one) == ""
    assert one.differs(Fingerprint(5, "aa", ("x", "y"))) == "version 5 instead of 4"
    assert one.differs(Fingerprint(4, "bb", ("x", "z"))) == "bucket 1 of 2: z instead of y"
    assert one.differs(Fingerprint(4, "bb", ("x",))) == "1 buckets instead of 2"
    assert one.differs(Fingerprint(4, "bb", ("x", "y"))) == "checksum bb instead of aa"


# ----------------------------------------------------------------------------------------------- killed half-way


class Killed(BaseException):
    """Nothing in the program catches it, as nothing catches SIGKILL."""


@pytest.mark.parametrize("moment", ["bytes", "manifest"])
def test_a_half_pushed_version_is_invisible_and_swept_up_by_the_next(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedMemoryStore(tmp_path, BUCKET_MB)
    shared.push(1, tensors(1))
    with monkeypatch.context() as patch:
        target, name = (store, "pack") if moment == "bytes" else (store.os, "replace")
        real = getattr(target, name)

        def die(*arguments: Any) -> None:
            if moment == "bytes":
                real(*arguments)
            raise Killed

        patch.setattr(target, name, die)
        with pytest.raises(Killed):
            shared.push(2, tensors(2))
    restarted = SharedMemoryStore(tmp_path, BUCKET_MB)
    assert restarted.latest() == 1
    with pytest.raises(WeightStoreError):
        pulled(restarted, 2)
    left_behind = len(list(tmp_path.iterdir()))
    restarted.push(2, tensors(3))
    assert np.array_equal(pulled(restarted, 2)["embed"], tensors(3)["embed"].numpy())
    assert len(list(tmp_path.iterdir())) == 4 <= left_behind + 1  # two versions, two files each


def test_the_same_bytes_of_another_type_have_another_checksum() -> None:
    halves = torch.arange(8, dtype=torch.bfloat16)
    assert checksum({"a": halves}) != checksum({"a": halves.view(torch.float16)})


def test_no_room_is_said_with_its_cure_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "pack", full)
    with pytest.raises(WeightStoreError, match=r"No space left.*--shm-size"):
        SharedMemoryStore(tmp_path).push(1, tensors())
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------- cutting


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3 * BLOCK_BYTES // 4), min_size=1, max_size=8),
    bucket=st.sampled_from([1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5, 10**9]),
)
def test_the_checksum_does_not_depend_on_the_cut_and_nothing_is_lost(sizes: list[int], bucket: int) -> None:
    arrays = {f"t{n}": np.arange(size, dtype=np.float32) for n, size in enumerate(sizes)}
    written: list[np.ndarray] = []
    manifest = buckets.pack(1, arrays, bucket, lambda part: written.append(part.copy()))
    assert manifest.fingerprint.checksum == checksum(arrays)
    found: dict[str, Any] = {}
    flat = np.concatenate([*written, np.zeros(0, np.uint8)])
    buckets.unpack(manifest, flat, lambda name, tensor: found.update({name: array_of(tensor)}))
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    total = sum(array.nbytes for array in arrays.values())
    assert len(manifest.fingerprint.buckets) <= total // max(BLOCK_BYTES, bucket) + 1
