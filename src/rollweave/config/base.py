"""The base of every configuration section: strict, frozen, documented under each field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    renamed: ClassVar[dict[str, str]] = {}
    """Keys of earlier versions and what they are called now. They are refused; the message says the new name."""


def usual_type(name: str) -> BeforeValidator:
    """For a section that comes in kinds: a section that does not say its `type` is of this one."""

    def named(data: Any) -> Any:
        return {"type": name, **data} if isinstance(data, dict) else data

    return BeforeValidator(named)


@dataclass(frozen=True, slots=True)
class PlainText:
    """For a section that may also be written as one text: `model: tiny` means `model: {type: tiny}`."""

    expand: Callable[[str], dict[str, Any]]
    """The section that a text stands for; a ValueError says why there is none."""
    examples: str
    """What the text may be, for messages and the reference."""

    def section(self, data: Any) -> Any:
        """The data as a section; what is not a text stays as it is."""
        return self.expand(data) if isinstance(data, str) else data

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """For data from Python. Files are expanded when they are loaded: a function before the check would turn their
        JSON into Python objects, and a strict check takes no list for a tuple then."""
        checked = handler(source)
        return core_schema.json_or_python_schema(
            checked, core_schema.no_info_before_validator_function(self.section, checked)
        )
