"""The names that exist in this repository, read off the code itself: files, modules, classes, keys, metrics, commands.

Python files are parsed, not imported. Three things are asked of the program, because only it can tell: the keys of the
configuration (from the pydantic sections), the metrics (from the catalogue) and the commands (from the typer app).
Nothing here knows in which package a thing lives, so moving a module needs no change in this file.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from typer.main import get_command

from rollweave.cli.main import app
from rollweave.config.base import Section
from rollweave.observability.catalogue import all_metrics, find

CODE = ("src", "bench", "tools", "tests")
KEPT = (*CODE, "deploy", "docs", "recipes")
WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(slots=True)
class KnownClass:
    bases: list[str] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)


@dataclass(slots=True)
class KnownCommand:
    options: list[str]
    commands: dict[str, KnownCommand]


@dataclass(slots=True)
class KnownNames:
    files: list[str] = field(default_factory=list)
    """Paths from the root, folders with a slash at their end."""
    modules: dict[str, set[str]] = field(default_factory=dict)
    """Dotted module -> the names it has at its top level."""
    classes: dict[str, KnownClass] = field(default_factory=lambda: defaultdict(KnownClass))
    """Classes of one name are one entry here: a docstring does not say which it means."""
    words: set[str] = field(default_factory=set)
    """Every identifier that stands in code, and every word of a string that is not a docstring."""
    strings: set[str] = field(default_factory=set)
    """Those strings as a whole: names of events, phases and waits."""
    sections: list[type[Section]] = field(default_factory=list)
    command: KnownCommand = field(default_factory=lambda: KnownCommand([], {}))
    make_targets: set[str] = field(default_factory=set)

    # ---------------------------------------------------------------------------------------------- what is asked

    def has_path(self, path: str) -> bool:
        """Whether a file or folder of the tree ends in this path."""
        return any(file == path or file.endswith(f"/{path}") for file in self.files)

    def has_test(self, path: str, test: str) -> bool:
        modules = [m for m in self.modules if not path or f"{m.replace('.', '/')}.py".endswith(path)]
        return any(test in self.modules[module] for module in modules)

    def tests(self) -> set[str]:
        return {f"{module.rpartition('.')[2]}.py::{name}" for module, names in self.modules.items()
                for name in names if name.startswith("test_")}  # fmt: skip

    def has_dotted(self, dotted: str) -> bool:
        """Whether it is a module (named whole, or by its last parts), a name in one, or an attribute of that."""
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            module = ".".join(parts[:cut])
            for known, names in self.modules.items():
                if (known == module or known.endswith(f".{module}")) and self._has_inside(names, parts[cut:]):
                    return True
        return False

    def _has_inside(self, names: set[str], inner: list[str]) -> bool:
        if not inner:
            return True
        if len(inner) == 1:
            return inner[0] in names
        return inner[0] in names & self.classes.keys() and self.has_attribute(inner[0], inner[1])

    def has_attribute(self, name: str, attribute: str) -> bool:
        """Whether a class has it, itself or from a base; True for what this repository does not define."""
        known = self.classes.get(name)
        if known is None:
            return name in self.words
        return attribute in known.attributes or any(
            base not in ("object", "Protocol", "Generic", name) and self.has_attribute(base, attribute)
            for base in known.bases
        )

    def has_attribute_of_value(self, value: str, attribute: str) -> bool:
        """Whether a value is called after its class and that has the attribute: `environment.step`."""
        name = value.replace("_", " ").title().replace(" ", "")
        return name in self.classes and self.has_attribute(name, attribute)

    def attributes_of(self, name: str) -> set[str]:
        return self.classes[name].attributes if name in self.classes else set()

    def starts_key(self, name: str) -> bool:
        """Whether a file may begin with a section of this name, so that `name.x` reads as a key of it."""
        return any(_inner(section, name) for section in self._root_sections())

    def _root_sections(self) -> list[type[Section]]:
        below = {inner for section in self.sections for key in section.model_fields for inner in _inner(section, key)}
        return [section for section in self.sections if section not in below]

    def has_key(self, dotted: str) -> bool:
        sections = self.sections
        for part in (parts := [p for p in dotted.split(".") if not p.isdigit()])[:-1]:
            sections = [inner for section in sections for inner in _inner(section, part)]
        return any(parts[-1] in section.model_fields for section in sections)

    def keys(self) -> set[str]:
        return {f"{name}.{key}" for section in self.sections for name in section.model_fields
                for inner in _inner(section, name) for key in inner.model_fields}  # fmt: skip

    def metric_starts(self) -> set[str]:
        return {metric.key.partition("/")[0] for metric in all_metrics() if "/" in metric.key}

    def metrics(self) -> list[str]:
        return [metric.key for metric in all_metrics()]

    def has_metric(self, key: str) -> bool:
        if key.endswith("*"):
            return any(metric.startswith(key[:-1]) for metric in self.metrics())
        return key in self.metrics() or find(re.sub(r"<(\w+)>", r"\1", key)) is not None


def _inner(section: type[Section], name: str) -> list[type[Section]]:
    """The sections that may stand below a key: one, the kinds of a union, the items of a list."""
    known = section.model_fields.get(name)
    return [] if known is None else list(_sections_in(known.annotation))


def _sections_in(kind: Any) -> Iterator[type[Section]]:
    if isinstance(kind, type) and issubclass(kind, Section):
        yield kind
    for argument in get_args(kind):
        yield from _sections_in(argument)


# ---------------------------------------------------------------------------------------------------- how it is learnt


def learn_names(root: Path) -> KnownNames:
    names = KnownNames(files=sorted(_files(root)))
    for folder in CODE:
        for path in sorted((root / folder).rglob("*.py")):
            _learn_module(names, path, root)
    names.sections = _config_sections()
    names.command = _learn_command(get_command(app))
    names.make_targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    return names


def _files(root: Path) -> Iterator[str]:
    yield from (path.name for path in root.iterdir() if path.is_file())
    for folder in KEPT:
        yield f"{folder}/"
        for path in (root / folder).rglob("*"):
            if "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix() + ("/" if path.is_dir() else "")


def _config_sections() -> list[type[Section]]:
    """Every section there is: all modules of the package that `Section` comes from are imported first."""
    package = importlib.import_module(Section.__module__.rpartition(".")[0])
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    found: list[type[Section]] = [Section]
    for section in found:
        found += [below for below in section.__subclasses__() if below not in found]
    return found


def _learn_command(command: Any) -> KnownCommand:
    """From a command of typer's; groups of commands have `commands`, the others do not."""
    options = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    below = {name: _learn_command(inner) for name, inner in getattr(command, "commands", {}).items()}
    return KnownCommand([*options, "--help", "-h", "--debug"], below)


def _learn_module(names: KnownNames, path: Path, root: Path) -> None:
    parts = list(path.relative_to(root).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "src" else parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = names.modules.setdefault(".".join(parts[:-1] if parts[-1] == "__init__" else parts), set())
    top.update(name for statement in tree.body for name in _defined(statement))
    docstrings = {id(string) for string in docstrings_of(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            _learn_class(names.classes[node.name], node)
        names.words.update(_identifiers(node))
        if parts[0] == "tests":  # its strings may be wrong on purpose
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            names.strings.add(node.value)
            names.words.update(WORD.findall(node.value))
            if path.name == "__init__.py":  # names that are imported when they are asked for
                top.add(node.value)


def docstrings_of(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that stand for themselves: of modules, classes, functions, and those below a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def _defined(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name for alias in aliases)
        case ast.If() | ast.Try():
            yield from (name for inner in statement.body for name in _defined(inner))
        case _:
            yield from (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


def _learn_class(known: KnownClass, node: ast.ClassDef) -> None:
    known.bases += [WORD.findall(ast.unparse(base).partition("[")[0])[-1] for base in node.bases]
    known.attributes.update(name for statement in node.body for name in _defined(statement))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            known.attributes.add(inner.attr)


def _identifiers(node: ast.AST) -> Iterator[str]:
    for name in ("id", "attr", "arg", "name", "module"):
        if isinstance(value := getattr(node, name, None), str):
            yield from value.split(".")
