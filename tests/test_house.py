"""The order of the house: one name for one thing, and no package cycles.

An exception has a line with its reason here; one that is no longer needed fails.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "rollweave"

SHARED_NAMES: dict[str, str] = {}
"""Names that may be defined more than once, at most five, each with its reason."""


def modules() -> dict[str, Path]:
    """`rollout.link` → its file; a package is its `__init__.py`."""
    files = {path: path.relative_to(SOURCE).with_suffix("").parts for path in SOURCE.rglob("*.py")}
    return {".".join(parts).removesuffix("__init__").removesuffix("."): path for path, parts in files.items()}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


# ----------------------------------------------------------------------------------------------------------- names


def defined_names(module: ast.Module) -> Iterator[str]:
    """Public classes, wherever they stand, and public aliases of types."""
    yield from (node.name for node in ast.walk(module) if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (one.id for one in targets if isinstance(one, ast.Name) and is_alias(one.id))


def is_alias(name: str) -> bool:
    """Spelt like a class; constants are all capitals."""
    return name[0].isupper() and not name.isupper()


def names_defined_twice(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for module, parsed in trees.items():
        for name in set(defined_names(parsed)):
            places[name].append(module)
    return {name: sorted(found) for name, found in places.items() if len(found) > 1}


def test_no_name_is_defined_twice() -> None:
    files = SOURCE.parent.rglob("*.py")  # the experiments too
    twice = names_defined_twice({path.relative_to(SOURCE.parent).as_posix(): tree(path) for path in files})
    new = {name: places for name, places in twice.items() if name not in SHARED_NAMES}
    assert not new, "one noun, one thing: choose another name, or use the class that has it"
    assert SHARED_NAMES.keys() <= twice.keys(), "settled: take it out of the table"
    assert len(SHARED_NAMES) <= 5


def test_a_second_definition_is_found() -> None:
    texts = {"a": "class Pool: ...", "b": "Pool = Literal['x']", "c": "POOL = 1\n_Pool = int\nclass _Row: ...", "d": ""}
    assert names_defined_twice({name: ast.parse(text) for name, text in texts.items()}) == {"Pool": ["a", "b"]}


# ---------------------------------------------------------------------------------------------------------- cycles

Import = tuple[str, str]


def imports() -> set[Import]:
    """(importing, imported) modules of rollweave, also inside functions and under TYPE_CHECKING."""
    known = modules()
    found = {(module, name) for module, path in known.items() for name in imported(tree(path), known)}
    return {(module, name) for module, name in found if module and name}  # the root's own __init__ only exports


def imported(module: ast.Module, known: Iterable[str]) -> Iterator[str]:
    for node in ast.walk(module):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [one if one.removeprefix("rollweave.") in known else node.module for one in full]
        yield from (one.removeprefix("rollweave.") for one in names if one.startswith("rollweave."))


def package_edges(found: Iterable[Import]) -> dict[Import, list[Import]]:
    """Between the children of the lowest package that holds both: `mux.model` → `mux.decisions`, `runs` → `mux`.

    Two modules that lie in the same package are its own affair.
    """
    edges: dict[Import, list[Import]] = defaultdict(list)
    for one, other in found:
        a, b = one.split("."), other.split(".")
        depth = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if depth is not None and (depth == 0 or (len(a) > depth + 1 and len(b) > depth + 1)):
            edges[".".join(a[: depth + 1]), ".".join(b[: depth + 1])].append((one, other))
    return edges


def in_cycles(edges: Iterable[Import]) -> list[Import]:
    """The edges that lie on a cycle."""
    after: dict[str, set[str]] = defaultdict(set)
    for one, other in edges:
        after[one].add(other)

    def reached(start: str) -> set[str]:
        seen, open_ = set[str](), [start]
        while open_:
            new = after[open_.pop()] - seen
            seen |= new
            open_ += new
        return seen

    reach = {name: reached(name) for name in list(after)}
    return sorted((one, other) for one in list(reach) for other in after[one] if one in reach.get(other, ()))


def test_no_package_imports_itself_by_way_of_others() -> None:
    edges = package_edges(imports())
    assert {edge: edges[edge] for edge in in_cycles(edges)} == {}


def test_a_cycle_is_found() -> None:
    found = [
        ("a.x", "b.y"),
        ("b.z", "c.x"),
        ("c.w", "a.v"),
        ("a.x", "d"),
        ("m.one.x", "m.two.y"),
        ("m.two.y", "m.one.z"),
    ]
    cycles = {("a", "b"), ("b", "c"), ("c", "a"), ("m.one", "m.two"), ("m.two", "m.one")}
    assert set(in_cycles(package_edges(found))) == cycles
    assert list(imported(ast.parse("def f():\n  from rollweave.a import x, y"), {"a", "a.x"})) == ["a.x", "a"]
