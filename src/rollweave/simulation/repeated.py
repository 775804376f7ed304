"""A list of many equal items that stores one.

A simulation of thousands of GPUs makes billions of tokens that nobody reads: their number is all that admission,
staleness, costs and metrics ask for. `Repeated` is such a run of tokens (or of their log-probs): it has the length,
the items and the slices of a list, and is never written to but by `+=`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import repeat
from typing import Any, SupportsIndex, TypeVar

T = TypeVar("T")


class Repeated(list[T]):
    __slots__ = ("item", "size")

    def __init__(self, item: T, size: int) -> None:
        self.item = item
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return self.size > 0

    def __iter__(self) -> Iterator[T]:
        return repeat(self.item, self.size)

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        places = range(self.size)[place]
        return Repeated(self.item, len(places)) if isinstance(places, range) else self.item

    def __iadd__(self, more: Any) -> Repeated[T]:  # type: ignore[misc,override]
        self.size += len(more)
        return self

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Repeated) else other)

    def __repr__(self) -> str:
        return f"Repeated({self.item!r}, {self.size})"

    def copy(self) -> Repeated[T]:
        return Repeated(self.item, self.size)


@lru_cache(maxsize=65536)
def repeated(item: T, size: int) -> Repeated[T]:
    """The same, shared: only for whoever does not add to it."""
    return Repeated(item, size)
