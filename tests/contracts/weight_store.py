"""What every weight store owes trainer and engines: versions that are there as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rollweave.weights.buckets import BLOCK_BYTES, RawTensor, checksum
from rollweave.weights.store import WeightStore, WeightStoreError

BUCKET_MB = BLOCK_BYTES / 2**20
"""A bucket of one block: what is pushed here needs several. A store under test is made with it."""


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(300, 200, generator=generator),  # 240 kB: two buckets
        "norm": torch.randn(7, generator=generator),
        "scalar": torch.tensor(3.0),
        "transposed": torch.randn(50, 30, generator=generator).t(),
    }


def filled(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((1,), value)}


def array_of(tensor: RawTensor) -> np.ndarray:
    return tensor.data.copy().view(tensor.dtype).reshape(tensor.shape)


def pulled(store: WeightStore, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    store.pull(version, lambda name, tensor: found.update({name: array_of(tensor)}))
    return found


def what_is_pulled_is_what_was_pushed_even_after_the_next_step(store: WeightStore) -> None:
    live = tensors()
    before = {name: tensor.clone() for name, tensor in live.items()}
    first = store.push(1, live)
    live["embed"].add_(1.0)  # the trainer goes on
    second = store.push(2, live)
    assert first.checksum == checksum(before) != second.checksum == checksum(live)
    for version, expected in ((1, before), (2, live)):
        found = pulled(store, version)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert np.array_equal(found[name], tensor.numpy())
            assert found[name].shape == tuple(tensor.shape)


def a_pull_returns_the_digests_that_were_pushed(store: WeightStore) -> None:
    pushed = store.push(5, tensors())
    assert store.pull(5, lambda name, tensor: None) == pushed
    assert (pushed.version, len(pushed.buckets)) == (5, 2)  # the first block, and the rest


def the_last_two_versions_are_kept(store: WeightStore) -> None:
    assert store.latest() is None
    for version in range(4):
        store.push(version, filled(version))
        assert store.latest() == version
    assert [float(pulled(store, version)["w"][0]) for version in (2, 3)] == [2.0, 3.0]
    with pytest.raises(WeightStoreError, match=r"version 1 .* holds: 2, 3"):
        pulled(store, 1)


def a_version_that_was_never_pushed_is_refused(store: WeightStore) -> None:
    with pytest.raises(WeightStoreError, match=r"version 4 .* holds: none.*; push it first"):
        pulled(store, 4)


def a_trainer_that_went_back_takes_its_later_versions_back(store: WeightStore) -> None:
    for version in (7, 8):
        store.push(version, filled(version))
    store.push(6, filled(60.0))
    assert store.latest() == 6
    with pytest.raises(WeightStoreError):
        pulled(store, 7)
    store.push(7, filled(70.0))
    assert [float(pulled(store, version)["w"][0]) for version in (6, 7)] == [60.0, 70.0]


def a_reader_is_not_disturbed_by_the_same_version_pushed_again(store: WeightStore) -> None:
    store.push(2, tensors(1))
    seen: dict[str, Any] = {}

    def into(name: str, tensor: Any) -> None:
        if not seen:
            store.push(2, tensors(2))
        seen[name] = array_of(tensor)

    store.pull(2, into)
    assert all(np.array_equal(seen[name], tensor.numpy()) for name, tensor in tensors(1).items())
    assert np.array_equal(pulled(store, 2)["norm"], tensors(2)["norm"].numpy())


def types_that_numpy_does_not_know_travel_too(store: WeightStore) -> None:
    for version, dtype in enumerate((torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.int64, torch.bool)):
        sent = {name: tensor.to(dtype) for name, tensor in tensors().items()}
        sent["empty"] = torch.empty(0, 3, dtype=dtype)
        received: dict[str, torch.Tensor] = {}
        pushed = store.push(version, sent)
        assert store.pull(version, lambda name, raw: received.update({name: _tensor(raw)})) == pushed  # noqa: B023
        assert pushed.checksum == checksum(sent) == checksum(received)
        assert {name: (tensor.dtype, tensor.shape) for name, tensor in received.items()} == {
            name: (dtype, tensor.shape) for name, tensor in sent.items()
        }


def _tensor(raw: RawTensor) -> torch.Tensor:
    """As an engine makes one of what it is handed."""
    made = torch.empty(raw.shape, dtype=getattr(torch, raw.dtype))
    return made.copy_(torch.from_numpy(raw.data).view(made.dtype).reshape(raw.shape)) if len(raw.data) else made


BEHAVIOURS: tuple[Callable[[WeightStore], None], ...] = (
    what_is_pulled_is_what_was_pushed_even_after_the_next_step,
    a_pull_returns_the_digests_that_were_pushed,
    the_last_two_versions_are_kept,
    a_version_that_was_never_pushed_is_refused,
    a_trainer_that_went_back_takes_its_later_versions_back,
    a_reader_is_not_disturbed_by_the_same_version_pushed_again,
    types_that_numpy_does_not_know_travel_too,
)
