"""Every crossing between main memory and the device that computes, in one place: so they can be counted, and are few.

On a GPU a crossing costs far more than the few bytes it carries: `down` also waits until everything before it is
computed. So callers put what crosses together into one call. Engine, trainer, losses and weight loading make no tensor
of values that lie in main memory, and read none from the device, but through these functions.

On the CPU nothing moves: tensors and arrays share their memory. On the `meta` device tensors have no values. There
`down` hands back made-up ones (0, 1.0, False), so that tests can run every line without a GPU
(tests/test_device.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollweave.errors import ConfigError

ALIGNMENT = 16
"""Of the arrays that cross together; the first byte of a tensor must be a multiple of its item size."""

Array = NDArray[Any]


@dataclass(slots=True)
class Crossings:
    """How often this process has crossed."""

    up: int = 0
    down: int = 0


CROSSINGS = Crossings()
CPU = torch.device("cpu")

_inside: ContextVar[bool] = ContextVar("crossing", default=False)


def inside() -> bool:
    """Whether this is a crossing: here, and nowhere else, two devices meet in one operation."""
    return _inside.get()


@contextmanager
def _crossing() -> Iterator[None]:
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def find_device(name: str, rank: int | None = None) -> torch.device:
    """The device that a job's `device` means; `auto`: a GPU if there is one. `rank`: of several, each with its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # an unknown name; a build of torch without it; no such device
        raise ConfigError(
            f"device: {name} cannot be used here ({str(error).splitlines()[0]}): set device to auto or cpu, or "
            "install the build of torch that supports it"
        ) from error
    if rank is not None and device.type == "cuda" and device.index is None:
        return torch.device("cuda", rank)
    return device


# ---------------------------------------------------------------------------------------------------------- values


def up(device: torch.device, *arrays: Array) -> list[Tensor]:
    """Bring arrays to the device, all in one crossing."""
    CROSSINGS.up += 1
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    starts, size = _places(arrays)
    together = np.zeros(size, np.uint8)
    for start, array in zip(starts, arrays, strict=True):
        together[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with _crossing():
        moved = _sent(torch.from_numpy(together), device)
        return [
            moved[start : start + array.nbytes].view(_torch_type(array)).reshape(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]


def down(*tensors: Tensor) -> list[Array]:
    """Bring the values of tensors of one device to main memory, all in one crossing; bfloat16 comes as float32."""
    tensors = tuple(tensor.float() if tensor.dtype is torch.bfloat16 else tensor for tensor in tensors)
    CROSSINGS.down += 1
    device = tensors[0].device.type
    if device == "cpu":
        return [tensor.detach().numpy() for tensor in tensors]
    if device == "meta":
        return [_made_up(tensor) for tensor in tensors]
    with _crossing():
        together = torch.cat([tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])
        received = together.cpu().numpy()
    found, start = [], 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        kind = _numpy_type(tensor)
        found.append(received[start : start + size].copy().view(kind).reshape(tuple(tensor.shape)))
        start += size
    return found


def scalar(tensor: Tensor) -> float:
    return float(down(tensor)[0])


def flag(tensor: Tensor) -> bool:
    return bool(down(tensor)[0])


# ----------------------------------------------------------------------------------------------------- whole tensors


INTEGERS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
"""Weights and KV caches cross as integers of their size, because NumPy has no bfloat16."""


def bits(tensor: Tensor) -> Array:
    """The bits of a tensor as integers of its item size; on the CPU a view where it is contiguous."""
    integers: Any = INTEGERS[tensor.element_size()]
    CROSSINGS.down += 1
    if tensor.device.type == "meta":
        return np.zeros(tuple(tensor.shape), integers)
    with _crossing():
        there = tensor.detach().cpu().contiguous()
    found: Array = there.reshape(-1).view(torch.uint8).numpy().view(integers)
    return found.reshape(tuple(tensor.shape))


def fill(into: Tensor, array: Array) -> None:
    """Copy what `bits` gave into a tensor; a smaller array is repeated.

    On the CPU by NumPy, which stays in its thread: threads that torch starts beside those of an engine make libgomp put
    all of them to sleep between operations.
    """
    CROSSINGS.up += 1
    as_integers = into.view(_torch_type(array))
    if into.device.type == "cpu":
        as_integers.numpy()[...] = array
        return
    with _crossing():
        as_integers.copy_(torch.from_numpy(np.ascontiguousarray(array)))


def move(module: torch.nn.Module, device: torch.device) -> None:
    """Bring a module's parameters and buffers to a device."""
    CROSSINGS.up += 1
    with _crossing():
        module.to(device)


# ------------------------------------------------------------------------------------------------------------ helpers


def _places(arrays: Sequence[Array]) -> tuple[list[int], int]:
    starts, end = [], 0
    for array in arrays:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        starts.append(start)
        end = start + array.nbytes
    return starts, end


def _sent(together: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":  # untested on GPU: from pinned memory the copy waits for nothing
        together = together.pin_memory()
    return together.to(device, non_blocking=True)


def _made_up(tensor: Tensor) -> Array:
    kind = _numpy_type(tensor)
    return np.full(tuple(tensor.shape), kind.kind == "f", kind)


def _torch_type(array: Array) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def _numpy_type(tensor: Tensor) -> np.dtype[Any]:
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype
