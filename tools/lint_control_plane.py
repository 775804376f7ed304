"""What the control plane may not do, checked on its syntax trees: `python -m tools.lint_control_plane [FILE ...]`.

The control plane runs on two clocks. Code that reads the wall clock, draws from a shared generator, or starts a
thread or a task outside a task group would behave differently on the virtual one; torch and ray would make it heavy.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("rollout", "fleet", "pipelines", "simulation", "mux")
FILES = ("rewards/scaling.py", "rewards/delivery.py")
"""The control plane's own files in folders that are not."""

CLOCK = "ask the injected clock (rollweave.clock)"
SEEDS = "use rollweave.seeds.generator(seed, *names)"
THREADS = "the control plane is one asyncio loop; put blocking work behind an engine, trainer or environment worker"
TASKS = "start it in an asyncio.TaskGroup, so that its failure is seen"
HEAVY = "the control plane stays light; import it in engines/, training/ or runtimes/"

FORBIDDEN_MODULES = {
    "time": CLOCK,
    "random": SEEDS,
    "secrets": SEEDS,
    "uuid": SEEDS,
    "threading": THREADS,
    "multiprocessing": THREADS,
    "concurrent.futures": THREADS,
    "torch": HEAVY,
    "ray": HEAVY,
    "transformers": HEAVY,
}
FORBIDDEN_NAMES = {
    "asyncio.sleep": CLOCK,
    "asyncio.create_task": TASKS,
    "asyncio.ensure_future": TASKS,
    "asyncio.to_thread": THREADS,
    "asyncio.run_coroutine_threadsafe": THREADS,
    "datetime.datetime.now": CLOCK,
    "datetime.datetime.utcnow": CLOCK,
    "datetime.datetime.today": CLOCK,
    "datetime.date.today": CLOCK,
    "numpy.random": SEEDS,
    "os.urandom": SEEDS,
    "hash": "it differs from process to process; use rollweave.seeds.derive",
}
FORBIDDEN_LOOP_METHODS = {"create_task": TASKS, "run_in_executor": THREADS}
TYPES_ONLY = {"random.Random"}
"""May be named in a type hint; calling it is still a violation."""


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    file: str
    line: int
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what} is not allowed in the control plane: {self.fix}"


def lint(paths: Iterable[Path]) -> list[Violation]:
    return sorted(violation for path in paths for violation in check(path.read_text(encoding="utf-8"), str(path)))


def check(source: str, file: str) -> list[Violation]:
    visitor = _Visitor(file)
    visitor.visit(ast.parse(source, file))
    return visitor.violations


class _Visitor(ast.NodeVisitor):
    def __init__(self, file: str) -> None:
        self.file = file
        self.violations: list[Violation] = []
        self.meanings: dict[str, str] = {}  # what an imported name stands for: `np` is `numpy`

    def complain(self, node: ast.stmt | ast.expr, what: str, fix: str) -> None:
        self.violations.append(Violation(self.file, node.lineno, what, fix))

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):  # never executed
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.meanings[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
            # `import random` may serve a type hint; what is used of it is looked at where it is used.
            if alias.name != "random" and (fix := _forbidden_module(alias.name)):
                self.complain(node, f"import {alias.name}", fix)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self.meanings[alias.asname or alias.name] = full
            fix = None if node.level or full in TYPES_ONLY else _forbidden_module(full) or FORBIDDEN_NAMES.get(full)
            if fix:
                self.complain(node, f"from {node.module} import {alias.name}", fix)

    def visit_Call(self, node: ast.Call) -> None:
        if self.meaning(node.func) in TYPES_ONLY:
            self.complain(node, f"{self.meaning(node.func)}()", SEEDS)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self.meaning(node)
        if name in TYPES_ONLY:
            return
        if name and (fix := FORBIDDEN_NAMES.get(name) or _forbidden_module(name)):
            self.complain(node, name, fix)
        elif (fix := FORBIDDEN_LOOP_METHODS.get(node.attr)) and _is_loop(node.value):
            self.complain(node, f"loop.{node.attr}", fix)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == "hash" and isinstance(node.ctx, ast.Load):
            self.complain(node, "hash()", FORBIDDEN_NAMES["hash"])

    def meaning(self, node: ast.expr) -> str | None:
        """The full dotted name of an imported thing; None for anything else."""
        if isinstance(node, ast.Name):
            return self.meanings.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.meaning(node.value)):
            return f"{owner}.{node.attr}"
        return None


def _forbidden_module(name: str) -> str | None:
    return next((fix for module, fix in FORBIDDEN_MODULES.items() if f"{name}.".startswith(f"{module}.")), None)


def _is_loop(node: ast.expr) -> bool:
    """`loop`, `self._loop`, `asyncio.get_running_loop()`; a task group is called something else."""
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    return name.endswith("loop")


def control_plane_files() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / "src" / "rollweave" / folder).rglob("*.py"))
    yield from (ROOT / "src" / "rollweave" / file for file in FILES)
    yield from sorted((ROOT / "tests" / "world").rglob("*.py"))  # what the tests run it against


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments] or list(control_plane_files())
    violations = lint(paths)
    for violation in violations:
        print(violation)
    print(f"control plane: {len(paths)} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
