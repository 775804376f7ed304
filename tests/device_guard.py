"""DeviceGuard: refuses every operation on mixed devices or mixed kinds of floats, and crossings outside `crossing`.

The `meta` device computes shapes only, so whole steps of trainer and engine run on it without a GPU. By itself it lets
a CPU index into `gather`, `embedding` or `index`, and a CPU matrix into `matmul`; on a GPU those fail. This mode sees
every operation, also those of a backward pass, and looks at all arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rollweave import crossing

CONVERSIONS = ("aten::_to_copy", "aten::copy_", "aten::copy", "aten::_foreach_copy_")
"""They say which kind they make of which, so mixed kinds are meant."""
READS = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal")
MAKES = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
"""Their copy to the device is not an operation of its own."""
INDEXES = (Tensor.__getitem__, Tensor.__setitem__)


class Refused(Exception):
    """An operation that would fail, wait or be wrong on a GPU."""


class _OperationGuard(TorchDispatchMode):
    def __init__(self, device: str = "meta") -> None:
        super().__init__()
        self.device = device
        self.operations = 0
        self._in_attention = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if crossing.inside():
            return func(*args, **(kwargs or {}))
        self.operations += 1
        name, given = func._schema.name, list(_tensors((args, kwargs)))
        self._check(name, given, (kwargs or {}).get("device"))
        made = func(*args, **(kwargs or {}))
        if name not in CONVERSIONS:
            _same_devices(name, [*given, *_tensors(made)])
        return made

    @contextmanager
    def inside_attention(self) -> Iterator[None]:
        """Where there is no fused kernel, torch adds a mask in bfloat16 to scores in float32: its own affair."""
        self._in_attention = True
        try:
            yield
        finally:
            self._in_attention = False

    def _check(self, name: str, given: list[Tensor], wanted: Any) -> None:
        here = any(tensor.device.type == self.device for tensor in given)
        if name in READS and here:
            raise Refused(f"{name} reads a value from the device")
        if name in CONVERSIONS and wanted is not None and given:
            _same_devices(name, given, torch.device(wanted).type)
        _same_devices(name, given)
        if name not in CONVERSIONS and not self._in_attention:
            floats = {tensor.dtype for tensor in given if tensor.dim() and tensor.is_floating_point()}
            if len(floats) > 1:
                raise Refused(f"{name} on {', '.join(sorted(map(str, floats)))}")


class _FunctionGuard(TorchFunctionMode):
    """Sees what copies values to the device without an operation."""

    def __init__(self, operations: _OperationGuard) -> None:
        super().__init__()
        self.operations, self.device = operations, operations.device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self.operations.inside_attention() if func is scaled_dot_product_attention else nullcontext():
            made = func(*args, **(kwargs or {}))
        if crossing.inside():
            return made
        if func in MAKES and made.device.type == self.device:
            raise Refused(f"{func.__name__} copies values to the device")
        if func in INDEXES and args[0].device.type == self.device and _lists(args[1]):
            raise Refused("an index that is a list is copied to the device")
        return made


class DeviceGuard:
    def __init__(self, device: str = "meta") -> None:
        self._operations = _OperationGuard(device)
        self._functions = _FunctionGuard(self._operations)

    @property
    def operations(self) -> int:
        return self._operations.operations

    def __enter__(self) -> DeviceGuard:
        self._functions.__enter__()
        self._operations.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._operations.__exit__(*error)
        self._functions.__exit__(*error)


def _lists(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, list | np.ndarray) for part in parts)


def _same_devices(name: str, tensors: Iterable[Tensor], *others: str) -> None:
    devices = {tensor.device.type for tensor in tensors if tensor.dim()} | set(others)
    if len(devices) > 1:
        raise Refused(f"{name} on {' and '.join(sorted(devices))}")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
