"""Where versions of the weights wait for the engines.

The trainer pushes a version once; every engine pulls it when it likes. The last two versions are kept, so an
engine that is still reading version n is not disturbed by n + 1. `digest.checksum` of what was pushed travels
with the version, and each engine checks what it pulled against it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rollweave.weights.digest import checksum

KEPT_VERSIONS = 2


class WeightStore(Protocol):
    def push(self, version: int, tensors: Mapping[str, Any]) -> str:
        """Make a version available; returns its checksum."""
        ...

    def pull(self, version: int) -> Mapping[str, Any]:
        """The tensors of a version that was pushed."""
        ...


class MemoryStore:
    """For engine and trainer in one process."""

    def __init__(self) -> None:
        self._versions: dict[int, dict[str, Any]] = {}

    def push(self, version: int, tensors: Mapping[str, Any]) -> str:
        self._versions[version] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for old in sorted(self._versions)[:-KEPT_VERSIONS]:
            del self._versions[old]
        return checksum(self._versions[version])

    def pull(self, version: int) -> Mapping[str, Any]:
        return self._versions[version]


class SharedMemoryStore:
    """For processes on one machine: a safetensors file per version in shared memory, mapped by the readers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def push(self, version: int, tensors: Mapping[str, Any]) -> str:
        from safetensors.torch import save_file

        path = self._path(version)
        partial = path.with_suffix(".partial")
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, partial)
        os.replace(partial, path)  # readers see a whole version or none
        self._path(version - KEPT_VERSIONS).unlink(missing_ok=True)
        return checksum(tensors)

    def pull(self, version: int) -> Mapping[str, Any]:
        from safetensors.torch import load_file

        tensors: Mapping[str, Any] = load_file(self._path(version))
        return tensors

    def _path(self, version: int) -> Path:
        return self.folder / f"version-{version}.safetensors"
