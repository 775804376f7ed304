"""The files of a run, which survive a crash and can be read at any moment.

Lines of JSON are only appended, and a reader leaves out an incomplete last line. A file that holds one object or one
page is replaced in one move. JSON has no NaN and no infinity, and other programs must be able to read the files, so
such numbers are written as null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rollweave.errors import RunFolderError

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]

MAKE_ROOM = "Free some space or fix its permissions; checkpoints are intact"

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
        self._path = path
        self._flush_every = flush_every
        self._pending = 0
        with writing(path):
            torn = _ends_torn(path)
            self._file: TextIO = path.open("a", encoding="utf-8")
        if torn:  # a crash left half a line, and the next line must not continue it
            self._write("\n")

    def append(self, value: object) -> None:
        self._pending += 1
        self._write(encode(value) + "\n", flush=self._pending >= self._flush_every)

    def flush(self) -> None:
        self._write("", flush=True)

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _write(self, text: str, flush: bool = False) -> None:
        try:  # a busy run appends thousands of lines a second, for which `writing` is too slow
            self._file.write(text)
            if flush:
                self._pending = 0
                self._file.flush()
        except OSError as error:
            raise _unwritable(self._path, error) from error


def _ends_torn(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def _unwritable(what: object, error: OSError, advice: str = MAKE_ROOM) -> RunFolderError:
    return RunFolderError(f"cannot write {what}: {error.strerror}. {advice}")


@contextmanager
def writing(what: object, advice: str = MAKE_ROOM) -> Iterator[None]:
    """Inside, a failure to write says what could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise _unwritable(what, error, advice) from error


def replace_file(path: Path, text: str) -> None:
    """Replace a file in one move: no reader sees half of it, and a full disk leaves the old one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one object; empty if it does not exist or holds anything else."""
    try:
        return _parse(path.read_text(encoding="utf-8", errors="replace")) or {}
    except OSError:
        return {}


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
