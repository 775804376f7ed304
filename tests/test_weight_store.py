"""The weight store: buckets, digests, versions that are there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.weights import buckets, store
from rollweave.weights.buckets import BLOCK_BYTES, Fingerprint, RawTensor, WeightMismatch, checksum
from rollweave.weights.store import MemoryStore, SharedMemoryStore, WeightStore, WeightStoreError

SMALL_MB = BLOCK_BYTES / 2**20
"""A bucket of one block."""


@pytest.fixture(params=["memory", "shared"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> WeightStore:
    return MemoryStore(SMALL_MB) if request.param == "memory" else SharedMemoryStore(tmp_path, SMALL_MB)


def array_of(tensor: RawTensor) -> np.ndarray:
    return tensor.data.copy().view(tensor.dtype).reshape(tensor.shape)


def pulled(weights: WeightStore, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    weights.pull(version, lambda name, tensor: found.update({name: array_of(tensor)}))
    return found


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(300, 200, generator=generator),  # 240 kB: two buckets
        "norm": torch.randn(7, generator=generator),
        "scalar": torch.tensor(3.0),
        "transposed": torch.randn(50, 30, generator=generator).t(),
    }


def test_what_is_pulled_is_what_was_pushed_even_after_the_next_step(any_store: WeightStore) -> None:
    live = tensors()
    before = {name: tensor.clone() for name, tensor in live.items()}
    first = any_store.push(1, live)
    live["embed"].add_(1.0)  # the trainer goes on
    second = any_store.push(2, live)
    assert first.checksum == checksum(before) != second.checksum == checksum(live)
    for version, expected in ((1, before), (2, live)):
        found = pulled(any_store, version)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert np.array_equal(found[name], tensor.numpy())
            assert found[name].shape == tuple(tensor.shape)


def test_whoever_pulls_finds_the_digests_that_were_pushed(any_store: WeightStore) -> None:
    pushed = any_store.push(5, tensors())
    assert any_store.pull(5, lambda name, tensor: None) == pushed
    assert (pushed.version, len(pushed.buckets)) == (5, 2)  # the first block, and the rest


def test_the_last_two_versions_are_kept(any_store: WeightStore) -> None:
    assert any_store.latest() is None
    for version in range(4):
        any_store.push(version, {"w": torch.full((1,), float(version))})
        assert any_store.latest() == version
    assert [float(pulled(any_store, version)["w"][0]) for version in (2, 3)] == [2.0, 3.0]
    with pytest.raises(WeightStoreError, match=r"version 1 .* holds: 2, 3"):
        pulled(any_store, 1)


def test_a_trainer_that_went_back_takes_its_later_versions_back(any_store: WeightStore) -> None:
    for version in (7, 8):
        any_store.push(version, {"w": torch.full((1,), float(version))})
    any_store.push(6, {"w": torch.full((1,), 60.0)})
    assert any_store.latest() == 6
    any_store.push(7, {"w": torch.full((1,), 70.0)})
    assert [float(pulled(any_store, version)["w"][0]) for version in (6, 7)] == [60.0, 70.0]


# ------------------------------------------------------------------------------------------------------ corruption


@pytest.mark.parametrize("place", [0, BLOCK_BYTES - 1, BLOCK_BYTES, 239_999])
def test_a_flipped_bit_names_its_bucket_and_nothing_of_it_is_handed_over(place: int, tmp_path: Path) -> None:
    shared = SharedMemoryStore(tmp_path, SMALL_MB)
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
    shared = SharedMemoryStore(tmp_path, SMALL_MB)
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
    restarted = SharedMemoryStore(tmp_path, SMALL_MB)
    assert restarted.latest() == 1
    with pytest.raises(WeightStoreError):
        pulled(restarted, 2)
    left_behind = len(list(tmp_path.iterdir()))
    restarted.push(2, tensors(3))
    assert np.array_equal(pulled(restarted, 2)["embed"], tensors(3)["embed"].numpy())
    assert len(list(tmp_path.iterdir())) == 4 <= left_behind + 1  # two versions, two files each


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.int64, torch.bool])
def test_types_that_numpy_has_no_word_for_travel_too(any_store: WeightStore, dtype: torch.dtype) -> None:
    sent = {name: tensor.to(dtype) for name, tensor in tensors().items()} | {"empty": torch.empty(0, 3, dtype=dtype)}
    pushed = any_store.push(1, sent)
    received: dict[str, torch.Tensor] = {}

    def into(name: str, raw: RawTensor) -> None:
        assert raw.dtype == str(dtype).removeprefix("torch.")
        received[name] = torch.empty(raw.shape, dtype=dtype)
        if len(raw.data):
            received[name].copy_(torch.from_numpy(raw.data).view(dtype).reshape(raw.shape))

    assert any_store.pull(1, into) == pushed
    assert pushed.checksum == checksum(sent) == checksum(received)
    for name, tensor in sent.items():
        assert received[name].dtype == dtype and received[name].shape == tensor.shape
        assert np.array_equal(RawTensor.of(received[name]).data, RawTensor.of(tensor).data)


def test_the_same_bytes_of_another_type_have_another_checksum() -> None:
    halves = torch.arange(8, dtype=torch.bfloat16)
    assert checksum({"a": halves}) != checksum({"a": halves.view(torch.float16)})


def test_a_reader_is_not_disturbed_by_the_same_version_pushed_again(tmp_path: Path) -> None:
    shared = SharedMemoryStore(tmp_path, SMALL_MB)
    shared.push(2, tensors(1))
    seen: dict[str, Any] = {}

    def into(name: str, tensor: Any) -> None:
        if not seen:
            shared.push(2, tensors(2))
        seen[name] = array_of(tensor)

    shared.pull(2, into)
    assert all(np.array_equal(seen[name], tensor.numpy()) for name, tensor in tensors(1).items())
    assert np.array_equal(pulled(shared, 2)["norm"], tensors(2)["norm"].numpy())


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
