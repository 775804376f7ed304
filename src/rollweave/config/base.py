"""The base of every configuration section: strict, frozen, documented under each field."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


def usual_type(name: str) -> BeforeValidator:
    """For a section that comes in kinds: a section that does not say its `type` is of this one."""

    def named(data: Any) -> Any:
        return {"type": name, **data} if isinstance(data, dict) else data

    return BeforeValidator(named)
