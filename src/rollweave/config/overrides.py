"""Overrides: `key.sub=value` from the command line replaces a value of the job file before the file is checked.

The value is read as YAML, so `3`, `true`, `null`, `[0.9, 0.99]` and `{type: sync}` mean the same as in
the file. An item of a list is named by its position: `rewards.0.weight=2`.

An override that changes the `type` of a section empties the section first, in whatever order the overrides are
given, because the keys of the old type mean nothing to the new one. After `pipeline.type=rollart pipeline.alpha=2`
the section has exactly those two keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollweave.config import schema
from rollweave.config.base import Section
from rollweave.config.document import Document, KeyPath, dotted, parse
from rollweave.config.schema import KeyPlace
from rollweave.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Override:
    """One `key.sub=value`: the path of keys, and the value with its origin."""

    keys: list[str]
    value: Document


def apply_overrides(document: Document, overrides: Sequence[Override], root: type[Section]) -> None:
    """Write the overrides into the document's data, and their origins into its origins."""
    # The types come first, because they decide which keys the other overrides may set.
    for override in sorted(overrides, key=lambda override: override.keys[-1] != "type"):
        _apply(document, override, root)


def parse_override(text: str) -> Override:
    key, equals, value = text.partition("=")
    shown = f"{key}=..." if re.search(r"\btoken\b", text) else text  # in case it is the secret itself
    name = f"override '{shown}'"
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"{name}: expected key=value, for example training.steps=50")
    return Override(keys, parse(value, name, numbered=False))


def _apply(document: Document, override: Override, root: type[Section]) -> None:
    holder: Any = document.data
    path: KeyPath = ()
    for key in override.keys[:-1]:
        item = _item_of(holder, key, path, override)
        path = (*path, item)
        if isinstance(holder, dict) and holder.get(key) is None:
            holder[item] = _empty_section(schema.follow(root, document.data, path))
            document.origins[path] = override.value.name
        holder = holder[item]
    last = _item_of(holder, override.keys[-1], path, override)
    if last == "type" and _changes_type(holder, override, schema.follow(root, document.data, path)):
        holder.clear()
        document.graft(path, override.value)
    holder[last] = override.value.data
    document.graft((*path, last), override.value)


def _item_of(holder: Any, key: str, path: KeyPath, override: Override) -> str | int:
    """The key in the form that the holder takes: a name for a section, a position for a list."""
    if isinstance(holder, dict):
        return key
    if not isinstance(holder, list):
        raise ConfigError(f"{override.value.name}: {dotted(path)} is a value, it has no key {key}")
    if not key.isdecimal() or int(key) >= len(holder):
        raise ConfigError(
            f"{override.value.name}: {dotted(path)} is a list of {len(holder)}; name one by position, from 0"
        )
    return int(key)


def _empty_section(place: KeyPlace) -> dict[str, Any]:
    """The first content of a section that the file leaves out: its default type, if it has one."""
    field = place.section.model_fields.get(str(place.path[-1])) if place.section else None
    return {"type": field.default.type} if field and hasattr(field.default, "type") else {}


def _changes_type(holder: dict[str, Any], override: Override, place: KeyPlace) -> bool:
    current = {**_empty_section(place), **holder}.get("type")
    return bool(schema.kinds(place.type)) and current != override.value.data
