"""The weight store: buckets, digests, versions that are there as a whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.weight_store import BUCKET_MB, array_of, pulled, tensors
from rollweave.weights import buckets, shared_store
from rollweave.weights.buckets import BLOCK_BYTES, Fingerprint, Packing, WeightMismatch, checksum
from rollweave.weights.shared_store import SharedMemoryStore
from rollweave.weights.store import WeightStoreError

# ------------------------------------------------------------------------------------------------------ corruption


@pytest.mark.parametrize("place", [0, BLOCK_BYTES - 1, BLOCK_BYTES, 239_999])
def test_a_flipped_bit_names_its_bucket_and_nothing_of_it_is_handed_over(place: int, tmp_path: Path) -> None:
    shared = SharedMemoryStore(tmp_path, BUCKET_MB)
    shared.push(3, tensors())
    (data,) = tmp_path.glob("*.weights")
    with data.open("r+b") as file:
        flip(file, place)
    handed: list[str] = []
    with pytest.raises(WeightMismatch, match=rf"bucket {place // BLOCK_BYTES} of 2 of weights version 3 .*embed"):
        shared.pull(3, lambda name, tensor: handed.append(name))
    assert handed == []


def flip(file: BinaryIO, place: int) -> None:
    file.seek(place)
    (byte,) = file.read(1)
    file.seek(place)
    file.write(bytes([byte ^ 4]))


class Faulty(np.ndarray):
    """Memory with a bit that does not take what is written."""

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)
        self.view(np.ndarray)[:1] ^= 1


def test_digests_are_of_what_the_trainer_holds_not_of_what_was_written() -> None:
    """A fault on the way into the store is seen too."""
    packing = Packing({"w": np.ones(8, np.float32)}, BLOCK_BYTES)
    flat = np.zeros(packing.size, np.uint8).view(Faulty)
    manifest = packing.copy_to(flat, 1)
    with pytest.raises(WeightMismatch, match="bucket 0 of 1 of weights version 1"):
        buckets.unpack(manifest, flat.view(np.ndarray), lambda name, tensor: None)


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
def test_a_half_pushed_version_is_invisible_and_its_memory_is_used_by_the_next(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedMemoryStore(tmp_path, BUCKET_MB)
    shared.push(1, tensors(1))
    with monkeypatch.context() as patch:
        target, name = (Packing, "copy_to") if moment == "bytes" else (shared_store.os, "replace")
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
    half = set(tmp_path.glob("*.weights"))
    restarted.push(2, tensors(3))
    assert np.array_equal(pulled(restarted, 2)["embed"], tensors(3)["embed"].numpy())
    assert set(tmp_path.glob("*.weights")) == half and len(half) == 2
    assert len(list(tmp_path.iterdir())) == 4, "two versions, two files each"


# ------------------------------------------------------------------------------------------------- buffers, used again


def inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.glob("*.weights")}


def test_two_buffers_serve_all_versions(tmp_path: Path) -> None:
    shared = SharedMemoryStore(tmp_path, BUCKET_MB)
    for version in (1, 2):
        shared.push(version, tensors(version))
    two = inodes(tmp_path)
    for version in range(3, 9):
        shared.push(version, tensors(version))
        assert inodes(tmp_path) == two
        assert np.array_equal(pulled(shared, version)["embed"], tensors(version)["embed"].numpy())
        assert np.array_equal(pulled(shared, version - 1)["embed"], tensors(version - 1)["embed"].numpy())


def test_a_buffer_that_is_being_read_is_never_written_to(tmp_path: Path) -> None:
    writer, reader = SharedMemoryStore(tmp_path, BUCKET_MB), SharedMemoryStore(tmp_path, BUCKET_MB)
    writer.push(1, tensors(1))
    with reader.reading(1) as (manifest, flat):
        before = flat.copy()
        for version in range(2, 6):
            writer.push(version, tensors(version))
            assert np.array_equal(flat, before)
        assert [bucket.digest(flat) for bucket in manifest.buckets()] == list(manifest.fingerprint.buckets)
        assert writer.versions() == [4, 5], "it is not kept for the reader's sake"
    writer.push(6, tensors(6))
    assert len(inodes(tmp_path)) == 2, "now it is free"


def test_a_reader_that_was_killed_does_not_keep_its_buffer(tmp_path: Path) -> None:
    shared = SharedMemoryStore(tmp_path, BUCKET_MB)
    shared.push(1, tensors(1))
    code = (
        "import sys; from pathlib import Path; from rollweave.weights.shared_store import SharedMemoryStore\n"
        "with SharedMemoryStore(Path(sys.argv[1])).reading(1): print('reads', flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdout is not None and reader.stdin is not None and reader.stdout.readline() == b"reads\n"
    for version in (2, 3):
        shared.push(version, tensors(version))
    assert len(inodes(tmp_path)) == 3
    reader.kill()
    reader.wait()
    shared.push(4, tensors(4))
    assert len(inodes(tmp_path)) == 2


def test_a_process_that_keeps_buffers_mapped_sees_what_is_written_later(tmp_path: Path) -> None:
    writer, reader = SharedMemoryStore(tmp_path, BUCKET_MB), SharedMemoryStore(tmp_path, BUCKET_MB)
    for version in range(6):
        writer.push(version, tensors(version))
        assert np.array_equal(pulled(reader, version)["embed"], tensors(version)["embed"].numpy())


def test_a_model_of_another_size_fits_too(tmp_path: Path) -> None:
    shared = SharedMemoryStore(tmp_path, BUCKET_MB)
    for version, size in enumerate((10, 100_000, 7, 0, 50_000)):
        shared.push(version, {"w": torch.full((size,), float(version))})
        assert pulled(shared, version)["w"].tolist() == [float(version)] * size


def test_bytes_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    shared = SharedMemoryStore(tmp_path, BUCKET_MB)
    shared.push(1, tensors())
    for path in tmp_path.glob("*.weights"):
        path.unlink()
    with pytest.raises(WeightStoreError, match="version 1 of the weights lost its bytes"):
        pulled(shared, 1)


def test_the_same_bytes_of_another_type_have_another_checksum() -> None:
    halves = torch.arange(8, dtype=torch.bfloat16)
    assert checksum({"a": halves}) != checksum({"a": halves.view(torch.float16)})


def test_no_room_is_said_with_its_cure_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_store.os, "posix_fallocate", full)
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
    packing = Packing(arrays, bucket)
    flat = np.empty(packing.size, np.uint8)
    manifest = packing.copy_to(flat, 1)
    assert manifest.fingerprint.checksum == checksum(arrays)
    assert [one.digest(flat) for one in manifest.buckets()] == list(manifest.fingerprint.buckets)
    found: dict[str, Any] = {}
    buckets.unpack(manifest, flat, lambda name, tensor: found.update({name: array_of(tensor)}))
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    total = sum(array.nbytes for array in arrays.values())
    assert len(manifest.fingerprint.buckets) <= total // max(BLOCK_BYTES, bucket) + 1
