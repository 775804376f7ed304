"""Keys that name files. A job file may be loaded from anywhere, and its resolved copy lives in the run folder,
so a relative name is made absolute at load time, from the folder of the file that said it.

The schema marks such keys with these two types; whatever is built in Python, without a file, stays as given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo


def _absolute(name: str, info: ValidationInfo) -> str:
    base: Path | None = (info.context or {}).get("base")
    return name if base is None else str((base / Path(name).expanduser()).resolve())


def _absolute_target(target: str, info: ValidationInfo) -> str:
    file, colon, name = target.rpartition(":")
    return f"{_absolute(file, info)}:{name}" if colon and file.endswith(".py") else target


FileName = Annotated[str, AfterValidator(_absolute)]
"""A file or folder, relative to the job file."""

Target = Annotated[str, AfterValidator(_absolute_target)]
"""`file.py:name`, relative to the job file; or `package.module:name`, which is left alone."""
