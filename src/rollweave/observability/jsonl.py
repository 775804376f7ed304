"""Files of JSON lines that survive a crash: lines are only appended, and a reader leaves out an incomplete last line.

JSON has no NaN and no infinity, and other programs must be able to read the files. So such numbers are written as null.
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


# One encoder is kept: `json.dumps` with options makes a new one per call, which is most of the cost of an event.
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=str)


def encode(value: object) -> str:
    """Write one line of strict JSON. A number that is not finite becomes null, any other object its `str`."""
    try:
        return _ENCODER.encode(value)
    except ValueError:  # there is a NaN: rare, so the copy without it is made only in this case
        return _ENCODER.encode(_replace_non_finite(value))


def _replace_non_finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    return value


class Appender:
    """Appends lines to a file, and flushes after every `flush_every` lines and on request."""

    def __init__(self, path: Path, flush_every: int = 1) -> None:
        self.path = path
        self.flush_every = flush_every
        self._pending = 0
        try:
            torn = _ends_torn(path)
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from error
        if torn:  # a crash left half a line, and the next line must not continue it
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
    """The rows that could be read of a file, and notes about lines that could not."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read(path: Path) -> Lines:
    """Read all complete objects of a file. Any other line is skipped and noted; a missing file has no lines."""
    lines = Lines()
    if not path.is_file():
        return lines
    # Not splitlines(), which would also split at separators inside strings, such as U+2028.
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
