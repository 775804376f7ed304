"""`Catalogue`: sections that come with the package in a YAML file, such as devices and models, by their name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from rollweave.config.base import Section
from rollweave.config.document import parse


class NamedSection(Section):
    """A section that files refer to by its name."""

    name: str


Listed = TypeVar("Listed", bound=NamedSection)


class Catalogue(Mapping[str, Listed]):
    """The entries of a file by their name. The file is read when an entry is first asked for, not at import."""

    def __init__(self, kind: type[Listed], file: Path) -> None:
        self._kind = kind
        self._file = file

    @cached_property
    def _entries(self) -> dict[str, Listed]:
        sections = parse(self._file.read_text(encoding="utf-8"), self._file.name).data
        texts = {name: json.dumps({"name": name, **section}) for name, section in sections.items()}
        return {name: self._kind.model_validate_json(text) for name, text in texts.items()}

    def with_own(self, own: Iterable[Listed]) -> dict[str, Listed]:
        """All entries, with those that a file describes itself; of two with one name, the file's."""
        return {**self, **{section.name: section for section in own}}

    def __getitem__(self, name: str) -> Listed:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
