"""Answers questions about the schema, for the error messages and for the reference in `docs/configuration.md`.

A *place* is a position where a value may stand: its key path, its type (with bounds) and the section it is a key of.
Everything is read from the pydantic models, so a key added to a model is named, explained and suggested as well.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from rollweave.config.base import PlainText, Section
from rollweave.config.document import KeyPath

LIMITS = {Gt: "above", Ge: "of at least", Lt: "below", Le: "of at most"}


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A position in a file where a value may stand."""

    path: KeyPath
    type: Any
    section: type[Section] | None = None
    """The section that has this key."""
    about: str = ""
    """The meaning of the key, from its docstring in the schema."""


def unwrap(kind: Any) -> tuple[Any, list[Any]]:
    """The bare type without `Annotated` and `| None`, and the bounds that were around it."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        bare, bounds = unwrap(inner)
        flat = [b for m in metadata for b in (m.metadata if isinstance(m, FieldInfo) else [m])]
        return bare, bounds + flat
    options = [option for option in get_args(kind) if option is not type(None)]
    if is_union(kind) and len(options) == 1:
        return unwrap(options[0])
    return kind, []


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def kinds(kind: Any) -> dict[str, type[Section]]:
    """The sections of a union, by their `type`; empty for anything that is not such a union."""
    bare, _ = unwrap(kind)
    return {tag(option): option for option in get_args(bare)} if is_union(bare) else {}


def tag(section: type[Section]) -> str:
    return str(get_args(section.model_fields["type"].annotation)[0])


def section_of(kind: Any) -> type[Section] | None:
    """The section class, if the type is exactly one section."""
    bare, _ = unwrap(kind)
    return bare if isinstance(bare, type) and issubclass(bare, Section) else None


def plain_text(kind: Any) -> PlainText | None:
    """How the section may be written as one text, if it may."""
    return next((mark for mark in unwrap(kind)[1] if isinstance(mark, PlainText)), None)


def field_type(field: FieldInfo) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def item_type(kind: Any) -> Any:
    """The type of the items of a list of any length; None for anything else."""
    items = get_args(unwrap(kind)[0])
    return items[0] if len(items) == 2 and items[1] is Ellipsis else None


def about(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def child(place: KeyPlace, item: str | int) -> KeyPlace:
    """The place of a key of a section, or of an item of a list."""
    path = (*place.path, item)
    section = section_of(place.type)
    if section is not None:
        field = section.model_fields.get(str(item))
        return KeyPlace(path, field_type(field), section, about(field)) if field else KeyPlace(path, Any, section)
    return KeyPlace(path, item_type(place.type) or Any)


def locate(root: type[Section], location: tuple[str | int, ...]) -> KeyPlace:
    """Follow a pydantic error location, which has an extra item, the chosen type, at every union."""
    place = KeyPlace((), root)
    for item in location:
        if (options := kinds(place.type)) and item in options:
            place = KeyPlace(place.path, options[str(item)], place.section)
        else:
            place = child(place, item)
    return place


def follow(root: type[Section], data: Any, path: KeyPath) -> KeyPlace:
    """The place of a key path, choosing at every union the section that the data's own `type` says."""
    place = KeyPlace((), root)
    for item in path:
        place = child(chosen(place, data), item)
        data = _item(data, item)
    return place


def chosen(place: KeyPlace, data: Any) -> KeyPlace:
    """At a union, the place with the section that the data's own `type` says; any other place as it is."""
    options = kinds(place.type)
    name = data.get("type") if isinstance(data, dict) else None
    return KeyPlace(place.path, options.get(str(name), Any), place.section) if options else place


def _item(data: Any, item: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(item)
    return data[item] if isinstance(data, list) and isinstance(item, int) and item < len(data) else None


def keys_named(root: type[Section], name: str) -> list[str]:
    """All keys of this name in the schema, to help with a key that was put into the wrong section."""
    return sorted({dotted for dotted, _ in _all_keys(root, "") if dotted.rpartition(".")[2] == name})


def types_with(root: type[Section], dotted: str) -> list[str]:
    """The types that have this key, in a section that comes in several types."""
    return [tag(section) for key, section in _all_keys(root, "") if key == dotted and "type" in section.model_fields]


def _all_keys(section: type[Section], prefix: str) -> Iterator[tuple[str, type[Section]]]:
    for name, field in section.model_fields.items():
        yield prefix + name, section
        inner = section_of(field.annotation)
        for option in [inner] if inner else kinds(field.annotation).values():
            yield from _all_keys(option, f"{prefix}{name}.")


def choices(kind: Any) -> tuple[Any, ...]:
    """The values that a key may have, if the schema lists them; empty for any other key."""
    bare, _ = unwrap(kind)
    return get_args(bare) if get_origin(bare) is Literal else ()


def describe(kind: Any) -> str:
    """Say in plain words which values are allowed, for example `a whole number above 0`."""
    bare, bounds = unwrap(kind)
    if section_of(bare):
        return "a section of keys and values"
    if options := kinds(bare):
        text = plain_text(kind)
        return f"{text.examples + '; or ' if text else ''}a section with a type: {', '.join(options)}"
    if values := choices(bare):
        return f"one of {', '.join(map(str, values))}" if len(values) > 1 else str(values[0])
    if get_origin(bare) is tuple:
        return _describe_list(get_args(bare), bounds)
    if get_origin(bare) is dict:
        return "keys and values"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(bare, "a value") + _describe_bounds(bounds)


def _describe_list(items: tuple[Any, ...], bounds: list[Any]) -> str:
    many = {str: "texts", int: "whole numbers", float: "numbers"}.get(unwrap(items[0])[0], "sections")
    if items[-1] is not Ellipsis:
        return f"a list of {len(items)} {many}"
    least = next((f"at least {bound.min_length} " for bound in bounds if isinstance(bound, MinLen)), "")
    return f"a list of {least}{many}"


def _describe_bounds(bounds: list[Any]) -> str:
    # With `:g`, because typing keeps one copy of equal bounds, so a bound of 0.0 may arrive as 0.
    limits = [f"{LIMITS[type(bound)]} {astuple(bound)[0]:g}" for bound in bounds if type(bound) in LIMITS]
    return " " + " and ".join(limits) if limits else ""
