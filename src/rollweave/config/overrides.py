"""`key.sub=value` from the command line, laid over a job file's data before it is checked.

The value is read as YAML, so `3`, `true`, `null`, `[0.9, 0.99]` and `{type: sync}` mean what they mean in
the file. List items go by position: `rewards.0.weight=2`.

Switching the `type` of a section empties it first, whatever the order of the overrides: the keys of the old
type mean nothing to the new one. `pipeline.type=rollart pipeline.alpha=2` is then exactly those two keys.

Keys that name files. A job file may be loaded from anywhere, and its resolved copy lives in the run folder,
so a relative name is made absolute at load time, from the folder of the file that said it.

The schema marks such keys with these two types; whatever is built in Python, without a file, stays as given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from rollweave.config import schema
from rollweave.config.base import Section
from rollweave.config.document import Document, KeyPath, dotted, parse
from rollweave.config.schema import KeyPlace
from rollweave.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Override:
    keys: list[str]
    value: Document


def apply_overrides(document: Document, overrides: Sequence[Override], root: type[Section]) -> None:
    # Types first: they decide which keys the others may set.
    for override in sorted(overrides, key=lambda override: override.keys[-1] != "type"):
        _apply(document, override, root)


def parse_override(text: str) -> Override:
    name = f"override '{text}'"
    key, equals, value = text.partition("=")
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
    if last == "type" and _is_switch(holder, override, schema.follow(root, document.data, path)):
        holder.clear()
        document.graft(path, override.value)
    holder[last] = override.value.data
    document.graft((*path, last), override.value)


def _item_of(holder: Any, key: str, path: KeyPath, override: Override) -> str | int:
    """The key as the holder wants it: a name for a section, a position for a list."""
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
    """What a section that the file leaves out begins with: the type it has by default, if it has one."""
    field = place.section.model_fields.get(str(place.path[-1])) if place.section else None
    return {"type": field.default.type} if field and hasattr(field.default, "type") else {}


def _is_switch(holder: dict[str, Any], override: Override, place: KeyPlace) -> bool:
    current = {**_empty_section(place), **holder}.get("type")
    return bool(schema.kinds(place.type)) and current != override.value.data


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
