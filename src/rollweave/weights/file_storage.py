"""Weights as files behind a URL: a folder that all machines see, or an object storage (`s3://`, `gs://`, ...)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rollweave.weights.relay import BrokenTransfer
from rollweave.weights.store import WeightStoreError


@dataclass(frozen=True, slots=True)
class FileStorage:
    url: str

    def open(self, size: int) -> None:
        pass

    def put(self, name: str, data: bytes) -> None:
        system, root = self._system()
        path = f"{root}/{name}"
        try:
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
            if _is_local(system):  # elsewhere a file appears at once
                system.pipe_file(f"{path}.partial", data)
                system.mv(f"{path}.partial", path)
            else:
                system.pipe_file(path, data)
        except OSError as error:
            raise WeightStoreError(
                f"weights.url: {self.url} does not take {name} ({error}): make room there"
            ) from error

    def get(self, name: str) -> bytes | None:
        system, root = self._system()
        try:
            data: bytes = system.cat_file(f"{root}/{name}")
            return data
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BrokenTransfer(f"{self.url} does not answer: {error}") from error

    def drop(self, names: Iterable[str]) -> None:
        system, root = self._system()
        for name in names:
            with suppress(FileNotFoundError):
                system.rm_file(f"{root}/{name}")
            if _is_local(system):
                with suppress(OSError):  # other files are still in it
                    system.rmdir(f"{root}/{name}".rpartition("/")[0])

    def clear(self) -> None:
        system, root = self._system()
        with suppress(OSError):  # it is gone, or nothing was stored
            system.rm(root, recursive=True)

    def _system(self) -> tuple[Any, str]:
        """The file system, and the folder in it."""
        from fsspec.core import url_to_fs

        try:
            system, root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise WeightStoreError(
                f"weights.url: {self.url} cannot be opened ({error}): use file:///folder, or install what its scheme "
                "needs (pip install s3fs for s3://, gcsfs for gs://)"
            ) from error
        return system, root


def _is_local(system: Any) -> bool:
    return "file" in system.protocol
