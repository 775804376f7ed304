"""The weights' checksum: sees every bit, ignores order, costs little."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from rollweave.weights.buckets import BLOCK_WORDS, checksum


def tensors(size: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {"a": draw.standard_normal(size).astype(np.float32), "b": draw.standard_normal((3, 5)).astype(np.float32)}


def test_order_does_not_matter_but_names_shapes_and_types_do() -> None:
    base = tensors(10)
    digest = checksum(base)
    assert checksum({"b": base["b"], "a": base["a"]}) == digest
    assert checksum({"a": base["b"], "b": base["a"]}) != digest
    assert checksum({"a": base["a"], "b": base["b"].reshape(5, 3)}) != digest
    assert checksum({"a": base["a"].view(np.int32), "b": base["b"]}) != digest
    assert checksum({"a": base["a"]}) != digest


def test_torch_and_numpy_agree_and_strides_do_not_matter() -> None:
    base = tensors(1000)
    assert checksum({k: torch.from_numpy(v) for k, v in base.items()}) == checksum(base)
    flipped = {"a": base["a"], "b": torch.nn.Parameter(torch.from_numpy(base["b"].T.copy())).t()}
    assert checksum(flipped) == checksum(base)


@pytest.mark.parametrize("size", [1, 3, 4 * BLOCK_WORDS, 4 * BLOCK_WORDS + 3])
def test_every_bit_counts(size: int) -> None:
    base = tensors(size)
    digest = checksum(base)
    words = base["a"].view(np.uint32)
    for place in {0, size // 2, size - 1}:
        for bit in range(32):
            words[place] ^= np.uint32(1 << bit)
            assert checksum(base) != digest
            words[place] ^= np.uint32(1 << bit)
    assert checksum(base) == digest


def test_exchanged_values_show_within_and_across_blocks() -> None:
    base = tensors(8 * BLOCK_WORDS)
    digest = checksum(base)
    for left, right in ((0, 1), (0, 2), (0, 2 * BLOCK_WORDS), (5, 4 * BLOCK_WORDS + 5)):
        swapped = base["a"].copy()
        swapped[[left, right]] = swapped[[right, left]]
        assert checksum({**base, "a": swapped}) != digest


def test_the_value_is_fixed_for_good() -> None:
    """Checkpoints and processes of other versions compare it."""
    assert checksum({"a": np.arange(40_000, dtype=np.float32), "b": np.ones(3, np.int64)}) == "e5885600daf6009d"


def test_it_does_not_load_torch() -> None:
    code = "import sys, rollweave.weights.buckets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
