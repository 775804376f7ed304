"""Spans and requests from plain lists, as a test writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rollweave.engines.protocol import Request, Sampling
from rollweave.training.checkpoint import DriverFiles
from rollweave.trajectory import Span, Transform, logprob_array, token_ids


def span_of(
    tokens: Iterable[int],
    logprobs: Iterable[float] | None = None,
    raw_logprobs: Iterable[float] | None = None,
    version: int | None = None,
    transform: Transform | None = None,
    kv_version: int | None = None,
) -> Span:
    behaviour, raw = (None if values is None else logprob_array(values) for values in (logprobs, raw_logprobs))
    return Span(token_ids(tokens), behaviour, raw, version, transform, kv_version)


def request_of(
    id: str, trajectory: str, tokens: Iterable[int], seed: int, sampling: Sampling, *more: Any, **others: Any
) -> Request:
    return Request(id, trajectory, token_ids(tokens), seed, sampling, *more, **others)


def assert_same_files(one: DriverFiles, other: DriverFiles) -> None:
    """To the last bit."""
    assert one.text == other.text
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.dtype == other.arrays[name].dtype
        assert np.array_equal(array.view(np.uint8), other.arrays[name].view(np.uint8)), name
