"""Records every call of a function of `rollweave` in this process; `tools/circle.py` puts this folder on PYTHONPATH.

The modules of `rollweave` are compiled with one more statement at the head of each function. That costs nothing
elsewhere (a profile function would be called for every function of torch too), and every process that a run starts
inherits it with the environment, the workers of Ray included. Calls that a module makes while it is imported are not
recorded: no reader follows them.

Each process appends to a file of its own in $ROLLWEAVE_CIRCLE, unbuffered, since workers are killed in the end. A line
is `nanoseconds<tab>file<tab>function`; the clock is the machine's, so the files of all processes can be merged.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Sequence
from types import CodeType, ModuleType

FOLDER = os.environ.get("ROLLWEAVE_CIRCLE", "")
RECORD = "__rollweave_circle__"
_importing = threading.local()
_last: tuple[str, str] = ("", "")
_file = -1
_pid = 0


def record(file: str, function: str) -> None:
    global _last, _file, _pid
    if (file, function) == _last or bool(getattr(_importing, "depth", 0)):
        return
    _last = (file, function)
    if _pid != os.getpid():  # also after a fork
        _pid = os.getpid()
        _file = os.open(os.path.join(FOLDER, f"{_pid}.tsv"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_file, f"{time.monotonic_ns()}\t{file}\t{function}\n".encode())


class _Mark(ast.NodeTransformer):
    """Puts the call of `record` at the head of each function, behind its docstring."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.names: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._marked(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._marked(node)

    def _inside(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.names.append(node.name)
        self.generic_visit(node)
        self.names.pop()
        return node

    def _marked(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        name = ".".join([*self.names, node.name])
        self._inside(node)
        call = ast.parse(f"{RECORD}({self.file!r}, {name!r})").body
        for part in ast.walk(call[0]):
            ast.copy_location(part, node.body[0])
        place = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body[place:place] = call
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:  # never from a cache: that one is compiled without marks
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        return compile(_Mark(_short(path)).visit(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        _importing.depth = getattr(_importing, "depth", 0) + 1
        try:
            super().exec_module(module)
        finally:
            _importing.depth -= 1


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "rollweave":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return spec
        loader = _Loader(fullname, spec.origin)
        locations = spec.submodule_search_locations
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=locations
        )


def _short(path: str) -> str:
    return path.replace(os.sep, "/").rpartition("/rollweave/")[2]


if FOLDER:
    import builtins

    setattr(builtins, RECORD, record)
    sys.meta_path.insert(0, _Finder())
