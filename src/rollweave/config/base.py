"""The base class of every configuration section, and the value types that several sections share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

from rollweave.targets import split_scheme


class Section(BaseModel):
    """A part of a file: strict (no unknown keys, no converted types), frozen, documented under each field."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    renamed: ClassVar[dict[str, str]] = {}
    """Keys of earlier versions with their new names. They are refused, and the message says the new name."""
    from_files: ClassVar[tuple[str, ...]] = ()
    """Keys whose section may be in a file of its own. The key, or an override, then gives the name of the file."""


NonNegative = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


def default_type(name: str) -> BeforeValidator:
    """Make `name` the type of a section that leaves out its `type` key."""
    return BeforeValidator(lambda data: {"type": name, **data} if isinstance(data, dict) else data)


@dataclass(frozen=True, slots=True)
class PlainText:
    """Marks a section that may also be written as one text: `model: tiny` means `model: {type: tiny}`."""

    expand: Callable[[str], dict[str, Any]]
    """Returns the section that a text stands for, or raises a ValueError that says why there is none."""
    examples: str
    """The texts that are allowed, for messages and the reference."""

    def section(self, data: Any) -> Any:
        """Expand the data if it is a text; other data is returned as it is."""
        return self.expand(data) if isinstance(data, str) else data

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Expand data from Python. Data from files is expanded when the file is loaded: a function before the check
        would turn JSON into Python objects, and the strict check does not accept a Python list for a tuple."""
        checked = handler(source)
        return core_schema.json_or_python_schema(
            checked, core_schema.no_info_before_validator_function(self.section, checked)
        )


# A job file may be loaded from any folder, and its resolved copy lies in the run folder. So a relative file name is
# made absolute when the file is loaded. A section that is built in Python, without a file, keeps the name as given.


def _absolute(name: str, info: ValidationInfo) -> str:
    base: Path | None = (info.context or {}).get("base")
    return name if base is None else str((base / Path(name).expanduser()).resolve())


def _absolute_target(target: str, info: ValidationInfo) -> str:
    scheme, place = split_scheme(target)
    file, colon, name = place.rpartition(":")
    if not colon or not file.endswith(".py") or scheme in ("http", "https"):
        return target
    return f"{scheme}://{_absolute(file, info)}:{name}" if scheme else f"{_absolute(file, info)}:{name}"


FileName = Annotated[str, AfterValidator(_absolute)]
"""A file or folder, relative to the job file."""

Target = Annotated[str, AfterValidator(_absolute_target)]
"""`file.py:name`, relative to the job file; or `package.module:name`, which is left as it is. A reward's may begin with
the kind of its function, as in `pool://file.py:name`."""
