"""Files of JSON lines that survive a crash: appended to, never rewritten, read back with a torn last line left out.

JSON knows no NaN and no infinity, and a file that only Python can read is not a record: such numbers are
written as null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rollweave.errors import RunFolderError

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]


# Kept: json.dumps with options makes a new encoder per call, which is most of the cost of an event.
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=str)


def encode(value: object) -> str:
    """One line of strict JSON; what JSON has no word for becomes null (numbers) or its `str` (objects)."""
    try:
        return _ENCODER.encode(value)
    except ValueError:  # a NaN somewhere: rare, so the careful copy is only made then
        return _ENCODER.encode(_finite(value))


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class Appender:
    """Appends lines, flushing every `flush_every` of them and whenever asked."""

    def __init__(self, path: Path, flush_every: int = 1) -> None:
        self.path = path
        self.flush_every = flush_every
        self._pending = 0
        try:
            torn = _ends_torn(path)
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from error
        if torn:  # a crash left half a line; the next one must not be glued to it
            self._write("\n")

    def append(self, value: object) -> None:
        self._write(encode(value) + "\n")
        self._pending += 1
        if self._pending >= self.flush_every:
            self.flush()

    def flush(self) -> None:
        self._pending = 0
        try:
            self._file.flush()
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _ends_torn(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def _unwritable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"cannot write {path}: {error.strerror}. Free some space or fix its permissions; checkpoints are intact"
    )


@dataclass(slots=True)
class Lines:
    """What could be read of a file, and what a reader should be told about the rest."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read(path: Path) -> Lines:
    """All whole objects of a file. A line that is none is skipped and noted; a missing file has no lines."""
    lines = Lines()
    if not path.is_file():
        return lines
    # Not splitlines(): strings may hold separators such as U+2028 that it would break at.
    text = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(text, start=1):
        row = _parse(line)
        if row is not None:
            lines.rows.append(row)
        elif line.strip():
            where = "the last line" if number == len(text) else f"line {number}"
            lines.notes.append(f"{path.name}: {where} is incomplete and was left out")
    return lines


def _parse(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
