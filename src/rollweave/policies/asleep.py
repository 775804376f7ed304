"""Asleep: tensors whose memory on the device is given back for a while; their bytes wait in main memory.

Engine and trainer that share a device, and jobs that share a pool, take turns in its memory this way. A tensor stays
the same object, a parameter of an optimiser too: only the memory behind it goes and comes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rollweave.crossing import Array, bits, fill


class Asleep:
    @torch.no_grad()
    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Put them to sleep. Of tensors that share memory all must be named, or the memory is not given back."""
        self._kept: list[tuple[Array, torch.device, list[_Place]]] = []
        for memory, inhabitants in _memories(tensors).values():
            places = [_Place(one, int(one.storage_offset()), one.shape, one.stride()) for one in inhabitants]
            self._kept.append((bits(_bytes(memory)).copy(), memory.device, places))
            for one in inhabitants:
                one.set_(_memory(0, memory.device), 0, (0,), (1,))

    @property
    def bytes(self) -> int:
        return sum(kept.nbytes for kept, *_ in self._kept)

    @torch.no_grad()
    def wake(self) -> None:
        for kept, device, places in self._kept:
            memory = _memory(kept.nbytes, device)
            fill(_bytes(memory), kept)
            for place in places:
                place.tensor.set_(memory, place.offset, place.shape, place.stride)
        self._kept = []


class _Place(NamedTuple):
    """Where a tensor lies in its memory."""

    tensor: Tensor
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


def resident_bytes(tensors: Iterable[Tensor]) -> int:
    """What these tensors take of the device's memory at this moment."""
    return sum(memory.nbytes() for memory, _ in _memories(tensors).values())


def _memories(tensors: Iterable[Tensor]) -> dict[int, tuple[torch.UntypedStorage, list[Tensor]]]:
    """The distinct pieces of memory behind the tensors, each with those that lie in it."""
    found: dict[int, tuple[torch.UntypedStorage, list[Tensor]]] = {}
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        memory = tensor.untyped_storage()
        found.setdefault(memory._cdata, (memory, []))[1].append(tensor)
    return found


def _memory(size: int, device: torch.device) -> torch.UntypedStorage:
    return torch.UntypedStorage(size, device=device)  # type: ignore[no-untyped-call]


def _bytes(memory: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)
