"""Reads YAML text into plain data, and remembers in which line each key was written.

PyYAML follows YAML 1.1, in which `1e-4` is text, `1:30` is ninety and `no` is false. The loader in this file follows
the core of YAML 1.2: true/false, decimal numbers, null, text. It builds plain data only, and it refuses a
key that is given twice, because one of the two values would be ignored without a message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from rollweave.errors import ConfigError

KeyPath = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_PLAIN_VALUES = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "merge": (r"<<", "<"),
}


_RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
"""PyYAML's table: for each first character, the (tag, pattern) pairs to try in order."""
for _name, (_pattern, _first_characters) in _PLAIN_VALUES.items():
    for _character in _first_characters:
        _RESOLVERS.setdefault(_character, []).append((_TAG + _name, re.compile(f"^(?:{_pattern})$")))


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


class _Dumper(yaml.SafeDumper):
    # The same table, so that text which looks like a value (`1e-4`) is quoted and comes back as text.
    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML reads these unusual line ends back as blanks unless they are escaped.
        style = '"' if any(end in data for end in "\x85\u2028\u2029") else None
        return self.represent_scalar(_TAG + "str", data, style)


_Dumper.add_representer(str, _Dumper.represent_str)


@dataclass(slots=True)
class Document:
    """Plain data, with the place where each key path was written (`job.yaml:12`)."""

    name: str
    data: Any
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> str:
        """The place where the key was written, or, for a key that is not in the file, the place of its section."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, self.name)

    def graft(self, path: KeyPath, other: Document) -> None:
        """Take the origins below this path from another document, because the value there now comes from it."""
        self.origins = {known: place for known, place in self.origins.items() if known[: len(path)] != path}
        self.origins |= {(*path, *inner): place for inner, place in other.origins.items()}
        self.origins[path] = other.name


def parse(text: str, name: str, numbered: bool = True) -> Document:
    """Read YAML text. `numbered`: origins carry line numbers (a file), else only the name (an override)."""
    document = Document(name, None)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            document.data = _Reader(document, loader, numbered).value(node, ())
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_problem(error, name, numbered)) from None
    finally:
        loader.dispose()
    return document


def dump(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


@dataclass(slots=True)
class _Reader:
    """Turns a tree of YAML nodes into data, and notes the origin of every key."""

    document: Document
    loader: _Loader
    numbered: bool
    open: list[yaml.Node] = field(default_factory=list)
    """The nodes around the current one, to find an anchor that contains itself."""

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.document.origins.setdefault(path, self.place(node))
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        assert isinstance(node, yaml.CollectionNode)
        if any(node is outer for outer in self.open):
            raise ConfigError(f"{self.place(node)}: this anchor contains itself; write the value out")
        self.open.append(node)
        if isinstance(node, yaml.MappingNode):
            data: Any = self.mapping(node, path)
        else:
            data = [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        self.open.pop()
        return data

    def scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag.removeprefix(_TAG) not in ("str", "bool", "int", "float", "null"):
            raise ConfigError(f"{self.place(node)}: {node.value!r} has the tag {node.tag}; write plain values")
        value = int(node.value) if node.tag == _TAG + "int" else self.loader.construct_object(node)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"{self.place(node)}: {node.value} is not a finite number; write one, or leave the key out"
            )
        return value

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for source in reversed(list(self.merged(node))):
            data |= self.mapping(source, path)
        own: dict[str, str] = {}
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != _TAG + "str":
                raise ConfigError(f"{self.place(key)}: {key.value!r} is not a key; write text, or put it in quotes")
            if key.value in own:
                inner = dotted((*path, key.value))
                raise ConfigError(f"{self.place(key)}: {inner}: given twice, first at {own[key.value]}")
            own[key.value] = self.document.origins[(*path, key.value)] = self.place(key)
            data[key.value] = self.value(value, (*path, key.value))
        return data

    def merged(self, node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
        """The mappings that `<<: *anchor` or `<<: [*a, *b]` adds. The mapping's own keys win, then the earlier ones."""
        for key, value in node.value:
            if key.tag != _TAG + "merge":
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode):
                    raise ConfigError(f"{self.place(key)}: `<<` merges sections; give it an anchor of one")
                yield source

    def place(self, node: yaml.Node) -> str:
        return f"{self.document.name}:{node.start_mark.line + 1}" if self.numbered else self.document.name


def dotted(path: KeyPath) -> str:
    """Write a key path as text, for example `rewards[0].weight`."""
    text = "".join(f"[{item}]" if isinstance(item, int) else f".{item}" for item in path)
    return text.removeprefix(".")


def _syntax_problem(error: yaml.YAMLError, name: str, numbered: bool) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    place = f"{name}:{mark.line + 1}" if mark and numbered else name
    return f"{place}: not valid YAML: {problem}; check indentation, colons, brackets and quotes"
