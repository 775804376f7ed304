"""Weights between machines: one copy for each, transfers that break, patches, files behind a URL."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from contracts.machines import TwoMachines, two_machines
from contracts.weight_store import BUCKET_MB, pulled, tensors
from rollweave.weights.buckets import BLOCK_BYTES, Fingerprint, WeightMismatch, checksum
from rollweave.weights.delta import Patch, patch_between
from rollweave.weights.file_storage import FileStorage
from rollweave.weights.objects import INDEX, ObjectRemote
from rollweave.weights.ray_store import WeightServer
from rollweave.weights.relay import BrokenTransfer, Listing, Parcel, RelayStore
from rollweave.weights.shared_store import SharedMemoryStore
from rollweave.weights.store import WeightStoreError

Fault = Callable[[int, int], None]
"""Called with the number of a bucket and how often it was asked for before."""


@dataclass
class DirectRemote:
    """What the server on Ray does, without Ray, and with faults."""

    folder: Path
    fault: Fault = lambda number, before: None
    damaged: set[tuple[int, int]] = field(default_factory=set)
    """(bucket, time it was asked for): what arrives has a wrong bit."""
    asked: Counter[int] = field(default_factory=Counter)

    def ready(self) -> None:
        pass

    def publish(self, version: int, local: SharedMemoryStore) -> None:
        pass

    def listing(self, version: int) -> Listing:
        return Listing(WeightServer(self.folder).manifest(version))

    def fetch(self, listing: Listing, number: int, have: str) -> Sequence[Parcel]:
        before = self.asked[number]
        self.asked[number] += 1
        self.fault(number, before)
        parcel = WeightServer(self.folder).bucket(listing.manifest.fingerprint, number, have)
        if (number, before) in self.damaged:
            (parcel.values if isinstance(parcel, Patch) else parcel)[:1] ^= 1
        return [parcel]

    def latest(self) -> int | None:
        return WeightServer(self.folder).latest()

    def close(self) -> None:
        pass


def direct(
    folder: Path, delta: bool = False, patience: float = 20.0, **faults: Any
) -> tuple[TwoMachines, DirectRemote]:
    remote = DirectRemote(folder / "here", **faults)
    return two_machines(folder, remote, delta, patience), remote


def on_file(folder: Path, delta: bool = False) -> TwoMachines:
    return two_machines(folder, ObjectRemote(FileStorage(f"file://{folder}/store"), delta), delta)


def large(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Five buckets."""
    generator = torch.Generator().manual_seed(seed)
    return {f"w{n}": torch.randn(BLOCK_BYTES // 4, generator=generator).mul_(0.02).to(dtype) for n in range(5)}


def nothing(name: str, tensor: Any) -> None:
    pass


# ------------------------------------------------------------------------------------------------------- one copy


def test_one_copy_crosses_for_three_engines_that_pull_at_once(tmp_path: Path) -> None:
    machines, remote = direct(tmp_path)
    pushed = machines.push(1, large())
    engines = [machines.here.on(tmp_path / "there") for _ in range(3)]
    found: list[Fingerprint] = []
    threads = [threading.Thread(target=lambda one=one: found.append(one.pull(1, nothing))) for one in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [pushed] * 3
    assert remote.asked == dict.fromkeys(range(5), 1)
    assert sum(one.moved_bytes for one in found) == 5 * BLOCK_BYTES


def test_an_engine_on_the_trainers_machine_moves_nothing(tmp_path: Path) -> None:
    machines, remote = direct(tmp_path)
    pushed = machines.push(1, large())
    found = machines.here.pull(1, nothing)
    assert (found, found.moved_bytes, remote.asked.total()) == (pushed, 0, 0)


# ------------------------------------------------------------------------------------------------ broken transfers


def test_a_broken_transfer_goes_on_with_the_bucket_where_it_broke(tmp_path: Path) -> None:
    def fault(number: int, before: int) -> None:
        if number == 3 and before < 2:
            raise BrokenTransfer("the link is down")

    machines, remote = direct(tmp_path, fault=fault)
    pushed = machines.push(1, large())
    assert machines.pull(1, nothing) == pushed
    assert remote.asked == {0: 1, 1: 1, 2: 1, 3: 3, 4: 1}


class Killed(BaseException):
    """Nothing in the program catches it, as nothing catches SIGKILL."""


def test_the_next_engine_goes_on_where_one_died(tmp_path: Path) -> None:
    def fault(number: int, before: int) -> None:
        if number == 3 and before == 0:
            raise Killed

    machines, remote = direct(tmp_path, fault=fault)
    pushed = machines.push(1, large())
    handed: list[str] = []
    with pytest.raises(Killed):
        machines.pull(1, lambda name, tensor: handed.append(name))
    assert handed == [], "no engine gets a part of a version"
    assert machines.here.on(tmp_path / "there").pull(1, nothing) == pushed
    assert {number: remote.asked[number] for number in range(4)} == {0: 1, 1: 1, 2: 1, 3: 2}


def test_a_bucket_that_never_comes_is_named_when_patience_is_over(tmp_path: Path) -> None:
    def fault(number: int, before: int) -> None:
        if number == 2:
            raise BrokenTransfer("the link is down")

    machines, _ = direct(tmp_path, patience=0.05, fault=fault)
    machines.push(1, large())
    with pytest.raises(WeightStoreError, match=r"bucket 2 of 5 of weights version 1 did not arrive.*the link is down"):
        machines.pull(1, nothing)


def test_a_version_that_is_pushed_anew_while_it_is_fetched_arrives_as_it_is_now(tmp_path: Path) -> None:
    machines, remote = direct(tmp_path)

    def fault(number: int, before: int) -> None:
        if number == 2 and before == 0:
            machines.push(1, large(2))

    remote.fault = fault
    machines.push(1, large(1))
    assert machines.pull(1, nothing).checksum == checksum(large(2))


# ----------------------------------------------------------------------------------------------------- corruption


def test_a_bucket_that_is_damaged_on_its_way_comes_again(tmp_path: Path) -> None:
    machines, remote = direct(tmp_path, damaged={(1, 0)})
    pushed = machines.push(1, large())
    assert machines.pull(1, nothing) == pushed
    assert remote.asked == {0: 1, 1: 2, 2: 1, 3: 1, 4: 1}


def test_a_bucket_that_is_damaged_each_time_is_named_and_nothing_is_handed_over(tmp_path: Path) -> None:
    machines, _ = direct(tmp_path, damaged={(1, 0), (1, 1)})
    machines.push(1, large())
    handed: list[str] = []
    with pytest.raises(WeightMismatch, match="bucket 1 of 5 of weights version 1 is corrupt"):
        machines.pull(1, lambda name, tensor: handed.append(name))
    assert handed == []
    assert SharedMemoryStore(tmp_path / "there").versions() == []


def test_a_patch_that_is_damaged_is_replaced_by_the_whole_bucket(tmp_path: Path) -> None:
    machines, remote = direct(tmp_path, delta=True, damaged={(1, 1)})
    weights = large()
    machines.push(1, weights)
    machines.pull(1, nothing)
    weights["w1"][5] += 1.0
    pushed = machines.push(2, weights)
    found = machines.pull(2, nothing)
    assert found == pushed and remote.asked[1] == 3
    assert found.moved_bytes > BLOCK_BYTES, "the damaged patch, and the bucket"


# ------------------------------------------------------------------------------------------------------------ delta


@pytest.mark.parametrize("size", [1000, 300_000])
@pytest.mark.parametrize("changes", [0, 1, 2, 300])
def test_a_patch_has_every_bit_also_where_the_changes_lie_far_apart(size: int, changes: int) -> None:
    old = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    new = old.copy()
    new[np.linspace(size - 1, 0, changes, dtype=int)] ^= 7
    patch = patch_between(old, new)
    assert patch is not None and patch.nbytes <= 3 * (changes + size // 65_535)
    patch.apply(old)
    assert np.array_equal(old, new)


def test_there_is_no_patch_where_it_would_not_be_smaller() -> None:
    old = np.zeros(1000, np.uint8)
    assert patch_between(old, old ^ 1) is None


def stepped(masters: dict[str, torch.Tensor], rate: float) -> dict[str, torch.Tensor]:
    """One step of AdamW at its usual size, the learning rate, on float32 masters; as the engines get them."""
    for master in masters.values():
        master.sub_(rate * torch.sign(torch.randn(master.shape)))
    return {name: master.to(torch.bfloat16) for name, master in masters.items()}


@pytest.mark.parametrize("store", [lambda folder: direct(folder, True)[0], lambda folder: on_file(folder, True)])
def test_bfloat16_at_a_small_learning_rate_moves_a_tenth_of_the_bytes_and_is_exact(
    store: Callable[[Path], TwoMachines], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    machines, masters = store(tmp_path), large()
    size = 5 * BLOCK_BYTES // 2
    shares: list[float] = []
    for version in range(6):
        weights = stepped(masters, 1e-6)
        pushed = machines.push(version, weights)
        received: dict[str, Any] = {}
        found = machines.pull(version, lambda name, raw: received.update({name: raw.data.tobytes()}))  # noqa: B023
        assert found == pushed and pushed.checksum == checksum(weights)
        assert received == {name: weights[name].view(torch.uint8).numpy().tobytes() for name in weights}
        shares.append(found.moved_bytes / size)
    assert shares[0] == 1.0 and min(shares) > 0.0 and max(shares[1:]) <= 0.1, shares


def test_float32_falls_back_to_whole_buckets_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machines, _ = direct(tmp_path, delta=True)
    for version in (1, 2):
        pushed = machines.push(version, large(version))
        with caplog.at_level(logging.WARNING):
            found = machines.pull(version, nothing)
        assert (found, found.moved_bytes) == (pushed, 5 * BLOCK_BYTES)
        assert ("it came whole" in caplog.text) == (version == 2)


@pytest.mark.parametrize("store", [lambda folder: direct(folder, True)[0], lambda folder: on_file(folder, True)])
def test_what_did_not_change_does_not_travel(store: Callable[[Path], TwoMachines], tmp_path: Path) -> None:
    machines, weights = store(tmp_path), large()
    machines.push(1, weights)
    machines.pull(1, nothing)
    weights["w3"] = weights["w3"] + 1.0
    machines.push(2, weights)
    assert machines.pull(2, nothing).moved_bytes == BLOCK_BYTES


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_whatever_is_pushed_pulled_skipped_and_taken_back_a_pull_equals_a_full_push(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("delta")
    machines = on_file(folder, True) if data.draw(st.booleans(), "file") else direct(folder, True)[0]
    weights = {"a": np.zeros(BLOCK_BYTES, np.uint8), "b": np.zeros(3 * BLOCK_BYTES // 2, np.uint8)}
    version = 0
    for number in range(data.draw(st.integers(1, 8), "pushes")):
        changes = data.draw(st.sampled_from([0, 3, BLOCK_BYTES // 10, BLOCK_BYTES]), "changes")
        draw = np.random.default_rng(number)
        for array in weights.values():
            array[draw.integers(0, array.size, changes)] = draw.integers(0, 256, changes)
        version = max(0, version + data.draw(st.sampled_from([1, 1, 1, 0, -2]), "on"))
        machines.push(version, weights)
        if data.draw(st.booleans(), "pull"):
            assert machines.pull(version, nothing).checksum == checksum(weights)
    newcomer = folder / "newcomer"
    newcomer.mkdir()
    for one in (machines.there, machines.here.on(newcomer)):
        assert all(np.array_equal(pulled(one, version)[name], array) for name, array in weights.items())


# ------------------------------------------------------------------------------------------------ files behind a URL


def test_a_newcomer_never_fetches_much_more_than_a_copy_and_old_files_go(tmp_path: Path) -> None:
    torch.manual_seed(0)
    machines, masters = on_file(tmp_path, True), large()
    size = 5 * BLOCK_BYTES // 2
    for version in range(30):
        machines.push(version, stepped(masters, 5e-6))
        machines.latest()
        newcomer = tmp_path / f"newcomer-{version}"
        newcomer.mkdir()
        assert machines.here.on(newcomer).pull(version, nothing).moved_bytes <= 1.5 * size
    stored = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*.safetensors"))
    assert stored <= 3.2 * size, "two versions, whole, and their patches"


def test_the_files_are_plain_safetensors_with_the_names_of_the_weights(tmp_path: Path) -> None:
    machines = on_file(tmp_path)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in large().items()}
    machines.push(7, weights)
    assert machines.latest() == 7
    found: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "store").glob("version-7-*/*.safetensors"):
        found |= load_file(path)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def test_a_file_that_was_damaged_is_named_and_nothing_is_handed_over(tmp_path: Path) -> None:
    machines = on_file(tmp_path)
    machines.push(1, large())
    machines.latest()
    path = next((tmp_path / "store").glob("version-1-*/00002.safetensors"))
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    with pytest.raises(WeightMismatch, match="bucket 2 of 5 of weights version 1 is corrupt"):
        machines.pull(1, nothing)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_file_that_is_cut_short_or_gone_is_named(damage: str, tmp_path: Path) -> None:
    machines = on_file(tmp_path)
    machines.there.patience = 0.05
    machines.push(1, large())
    machines.latest()
    path = next((tmp_path / "store").glob("version-1-*/00002.safetensors"))
    path.write_bytes(path.read_bytes()[:1000]) if damage == "cut" else path.unlink()
    with pytest.raises(WeightStoreError, match=r"bucket 2 of 5 of weights version 1 did not arrive.*00002.safetensors"):
        machines.pull(1, nothing)


class FullStorage(FileStorage):
    """Takes small files only."""

    def put(self, name: str, data: bytes) -> None:
        if name != INDEX:
            raise WeightStoreError(f"weights.url: {self.url} does not take {name} (No space left on device)")
        super().put(name, data)


def test_a_storage_that_is_full_is_told_to_engines_and_to_the_next_push(tmp_path: Path) -> None:
    machines = two_machines(tmp_path, ObjectRemote(FullStorage(f"file://{tmp_path}/store")))
    machines.push(1, large())
    with pytest.raises(WeightStoreError, match=r"version 1 of the weights could not be stored: .*No space left"):
        machines.pull(1, nothing)
    with pytest.raises(WeightStoreError, match="No space left"):
        machines.push(2, large())


def test_an_engine_waits_for_a_version_that_is_still_being_stored(tmp_path: Path) -> None:
    go = threading.Event()

    class SlowStorage(FileStorage):
        def put(self, name: str, data: bytes) -> None:
            if name != INDEX:
                assert go.wait(20.0)
            super().put(name, data)

    machines = two_machines(tmp_path, ObjectRemote(SlowStorage(f"file://{tmp_path}/store")))
    pushed = machines.push(1, large())
    found: list[Fingerprint] = []
    engine = threading.Thread(target=lambda: found.append(machines.pull(1, nothing)))
    engine.start()
    with pytest.raises(BrokenTransfer, match="still storing"):
        machines.there.remote.listing(1)
    go.set()
    engine.join()
    assert found == [pushed]


def test_a_scheme_that_is_not_installed_is_said_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(WeightStoreError, match=r"weights.url: nosuch://x cannot be opened.*pip install s3fs"):
        FileStorage("nosuch://x").get("index.json")


def test_nothing_is_left_when_the_session_is_over(tmp_path: Path) -> None:
    machines = on_file(tmp_path)
    machines.push(1, large())
    machines.latest()
    machines.here.remote.close()
    assert not (tmp_path / "store").exists()


def test_a_store_can_be_sent_to_another_process(tmp_path: Path) -> None:
    import cloudpickle

    remote = ObjectRemote(FileStorage(f"file://{tmp_path}/store"))
    sent: RelayStore = cloudpickle.loads(cloudpickle.dumps(RelayStore(tmp_path, remote, BUCKET_MB, True)))
    sent.push(1, tensors())
    assert np.array_equal(pulled(sent, 1)["embed"], tensors()["embed"].numpy())
