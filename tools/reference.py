"""The reference of all keys, written from the schema. `make docs` prints it into docs/configuration.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from rollweave.config import schema
from rollweave.config.base import Section
from rollweave.config.document import dump
from rollweave.config.job import Job

INTRODUCTION = """\
# Configuration

One YAML file describes a job. Everything is checked before anything starts: an unknown key, a wrong type or a
contradictory pair is refused with its line and the nearest valid name. Relative file names are taken from the job
file's folder. `rollweave train JOB.yaml --dry-run` prints a job with all its defaults.

On the command line `key.sub=value` overrides the file; the value is YAML, list items go by position
(`rewards.0.weight=2`). Overriding the `type` of a section with another type drops the section's other keys first:
what the old type meant by them says nothing about the new one.

This page is written from the schema by `make docs`.
"""


def markdown() -> str:
    seen: set[type[Section]] = set()
    return "\n".join([INTRODUCTION, *_section("Job", "", Job, seen)])


def _section(title: str, prefix: str, section: type[Section], seen: set[type[Section]]) -> Iterator[str]:
    """A heading, the section's docstring, a table of its keys; then the sections inside it, each once."""
    if section in seen:
        return
    seen.add(section)
    yield f"## {title}\n"
    if section.__doc__:
        yield f"{section.__doc__.strip()}\n"
    yield "| key | value | default | meaning |\n|---|---|---|---|"
    for name, field in section.model_fields.items():
        yield _row(name, field)
    yield ""
    for name, field in section.model_fields.items():
        for inner_title, inner in _inner_sections(prefix + name, schema.field_type(field)):
            yield from _section(inner_title, f"{prefix}{name}.", inner, seen)


def _inner_sections(key: str, kind: Any) -> list[tuple[str, type[Section]]]:
    if options := schema.kinds(kind):
        return [(f"`{key}` of type `{tag}`", option) for tag, option in options.items()]
    if inner := schema.section_of(kind):
        return [(f"`{key}`", inner)]
    item = schema.item_type(kind)
    return _inner_sections(f"{key}[]", item) if item else []


def _row(key: str, field: FieldInfo) -> str:
    kind = schema.field_type(field)
    cells = [f"`{key}`", schema.describe(kind), _default(field), schema.about(field)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None:
        return "none"
    if isinstance(default, Section):
        return f"type `{schema.tag(type(default))}`" if schema.kinds(schema.field_type(field)) else "see below"
    return f"`{list(default)}`" if isinstance(default, tuple) else f"`{dump([default])[2:].strip()}`"


if __name__ == "__main__":
    print(markdown(), end="")
