"""Explains what is wrong with a file, in one line per problem: place, key, problem and the nearest valid name.

job.yaml:12: training.lerning_rate: no such key; did you mean learning_rate?
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rollweave.config import schema
from rollweave.config.base import Section
from rollweave.config.document import Document, dotted
from rollweave.config.schema import KeyPlace
from rollweave.errors import ConfigError
from rollweave.targets import closest

NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?")


def explain(error: ValidationError, document: Document, root: type[Section]) -> ConfigError:
    """Turn pydantic's error into a `ConfigError` with one line per problem."""
    lines = [_line(details, document, root) for details in error.errors() if not _is_consequence(details)]
    if len(lines) == 1:
        return ConfigError(lines[0])
    return ConfigError("\n  ".join([f"{document.name}: {len(lines)} problems", *lines]))


def _is_consequence(details: ErrorDetails) -> bool:
    """Whether the list is "too short" only because some of its items are wrong, which pydantic reports as well."""
    return details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]


def _line(details: ErrorDetails, document: Document, root: type[Section]) -> str:
    place = schema.locate(root, details["loc"])
    match details["type"]:
        case "value_error":
            return _contradiction(details, place, document)
        case "extra_forbidden":
            path, what = place.path, _unknown_key(place, root)
        case "missing" if isinstance(place.path[-1], int):  # a list of fixed length that is too short
            place = schema.locate(root, details["loc"][:-1])
            path, what = place.path, _wrong_value(place, details["input"])
        case "missing":
            about = f" ({place.about.rstrip('.')})" if place.about else ""
            path, what = place.path, f"missing; expected {schema.describe(place.type)}{about}"
        case "union_tag_not_found":
            path, what = (*place.path, "type"), f"missing; choose one of {', '.join(schema.kinds(place.type))}"
        case "union_tag_invalid":
            path, what = (*place.path, "type"), _unknown_type(place, details["input"])
        case _:
            path, what = place.path, _wrong_value(place, details["input"])
    return f"{document.origin(path)}: {dotted(path)}: {what}"


def _contradiction(details: ErrorDetails, place: KeyPlace, document: Document) -> str:
    """The sentence of a validator. It may begin with the key to change, whose line is then given."""
    message = str(details.get("ctx", {}).get("error", details["msg"]))
    named = re.match(r"[a-z_]+(\.[a-z_]+)*", message)
    keys = named.group().split(".") if named else []
    section = f"{dotted(place.path)}: " if place.path else ""
    return f"{document.origin((*place.path, *keys))}: {section}{message}"


def _unknown_key(place: KeyPlace, root: type[Section]) -> str:
    name = str(place.path[-1])
    valid = list(place.section.model_fields) if place.section else []
    if place.section and (now := place.section.renamed.get(name)):
        return f"is called {now} now, as in a job file"
    if close := closest(name, valid):
        return f"no such key; did you mean {close}?"
    if place.section and (types := schema.types_with(root, dotted(place.path))):
        mine = ", ".join(name for name in valid if name != "type") or "no keys"
        return f"a key of type {' or '.join(types)} only; type {schema.tag(place.section)} has {mine}"
    if elsewhere := schema.keys_named(root, name):
        return f"no such key here; did you mean {' or '.join(elsewhere[:3])}?"
    return f"no such key; valid keys are {', '.join(valid)}"


def _unknown_type(place: KeyPlace, data: Any) -> str:
    value, options = data.get("type"), list(schema.kinds(place.type))
    close = closest(str(value), options)
    hint = f"did you mean {close}?" if close else "choose one"
    return f"no such type {show(value)}; {hint} (valid: {', '.join(options)})"


def _wrong_value(place: KeyPlace, value: Any) -> str:
    choices = [str(choice) for choice in schema.choices(place.type)]
    close = closest(str(value), choices)
    hint = f"; did you mean {close}?" if close else ""
    if isinstance(value, str) and NUMBER.fullmatch(value) and not choices:
        hint = "; remove the quotes"
    return f"expected {schema.describe(place.type)}, got {show(value)}{hint}"


def show(value: Any) -> str:
    """Write a value as in the file, cut to a readable length."""
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
