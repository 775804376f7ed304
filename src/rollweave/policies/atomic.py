"""Writes a folder so that it appears complete or not at all: beside its final place, flushed to disk, then renamed.

A crash leaves either the whole folder or none of it. A failure removes the half-written folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `target` at the end. After an OSError, which passes, nothing is left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{PARTIAL}{target.name}-", dir=target.parent))
    try:
        yield partial
        partial.chmod(0o755)  # mkdtemp makes folders that only their owner can read
        for path in [*partial.rglob("*"), partial]:
            _flush(path)
        partial.rename(target)
        _flush(target.parent)
    except BaseException:  # raised again; a half-written folder stays after no kind of end
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
