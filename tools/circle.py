"""Counts the files of two walks through `src/rollweave`: `python -m tools.circle [lease|circle]`.

The walks are *lease* (from the command `rollweave train` to the first lease, inline) and *circle* (the full circle of
a trajectory on Ray: admission, host, turns, engine, reward, batch, train step, weights, engine). They are written down
in docs/architecture.md, and tests/test_circle.py holds them against a real run, whose calls are recorded in all its
processes (`circle_hook/sitecustomize.py`).

**The rule.**

- *Spine*: the files a reader opens in order. Each item of the numbered list names a file and one function of it, and
  the list is a subsequence of the recorded calls: the functions are really called one after the other in this order.
  A file stands there once. Observers, files with types only and leaf helpers (functions that take values and return
  values, and that the walk could be told without) are left out; so are the user's environment and the loss maths.
- *All*: the spine, and below it under "Also on the way" every other file that has a function which was called between
  the first and the last call of the spine. A function is what is not a dunder method: a file of which only `__init__`
  or `__len__` ran is not on the way. What `EXEMPT` names does not count either; each entry says why.
- *Bags*: classes that only carry live parts from one function to the next between the job file and the first lease.
  They are named in the line "Bags:". Every dataclass or named tuple that a function on the first walk makes must be
  one of them or stand in `NOT_BAGS`, with its reason.

Without a name both walks are traced and printed: every file in the order of its first call, with its class, and the
paragraph "Also on the way" as it should stand in the page.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "rollweave"
PAGE = ROOT / "docs" / "architecture.md"
HOOK = Path(__file__).parent / "circle_hook"

JOB = """
name: circle
model: {type: tiny, warm_start: {steps: 0}}
environment: {type: frozen_lake}
rollout: {groups_per_step: 2, group_size: 2, environments: 4, max_turns: 3, max_context: 128, sampling: {max_tokens: 4}}
engine: {slots: 4}
training: {steps: 2, loss: {type: ppo, denominator: behaviour}}
pipeline: {type: rollart, alpha: 1}
evaluation: {every: 0}
"""

OBSERVER = "an observer: the walk is the same without it"
DECLARATION = "declares keys and checks values"
GROUND = "the ground that everything stands on"
WORKER = "the inside of a worker, built on the way and used on the other walk"

EXEMPT_ALWAYS = {
    "observability/": OBSERVER,
    "runs/logbook.py": OBSERVER,
    "pipelines/journal.py": OBSERVER,
    "training/diagnostics.py": OBSERVER,
    "clock.py": GROUND,
    "seeds.py": GROUND,
    "versions.py": GROUND,
    "crossing.py": GROUND,
    "errors.py": GROUND,
    "config/base.py": DECLARATION,
    "config/control.py": DECLARATION,
    "config/job.py": DECLARATION,
    "config/losses.py": DECLARATION,
    "config/training.py": DECLARATION,
}
"""Files, or folders with a slash at their end, that never count."""


class Bars(NamedTuple):
    spine: int
    all: int


@dataclass(frozen=True)
class Walk:
    name: str
    heading: str
    """Of its section in docs/architecture.md."""
    runtime: str
    """The section of the job file."""
    bars: Bars
    exempt: dict[str, str] = field(default_factory=dict)
    """Beside EXEMPT_ALWAYS."""


WALKS = {
    "lease": Walk(
        "lease",
        "From the command to the first lease",
        "{type: inline, threads: 1}",
        Bars(spine=12, all=24),
        {
            "engines/": WORKER,
            "training/": WORKER,
            "weights/": WORKER,
            "policies/": WORKER,
            "environments/adapt.py": WORKER,
            "environments/frozen_lake.py": WORKER,
            "environments/latency.py": WORKER,
            "policies/start.py": WORKER,
        },
    ),
    "circle": Walk(
        "circle",
        "The full circle of a trajectory on Ray",
        "{type: ray}",
        Bars(spine=35, all=46),
        {"runs/session.py": OBSERVER},
    ),
}
BAGS_BAR = 3
NOT_BAGS = {
    "Session": "a component",
    "InlineTrainer": "a component",
    "Drive": "a component",
    "Checkpoints": "a component",
    "Journal": "a component",
    "WeightSync": "a component",
    "Scoring": "a component",
    "Evaluator": "a component",
    "PermitGate": "a component",
    "Feed": "a component",
    "AdapterStore": "a component",
    "Tail": "a component",
    "AdaptiveConcurrency": "a component",
    "Document": "a parsed file",
    "KeyPlace": "a key of the file",
    "Start": "where a run begins: plain data",
    "SeedSource": "a component",
    "Cursor": "a component's own state",
    "Header": "the first line of the view",
    "RolloutSettings": "numbers for the scheduler",
    "StalenessBound": "a rule with its numbers",
    "RunState": "a component's own state",
    "DriverState": "what a checkpoint keeps: plain data",
    "EngineEntry": "a component's own state",
    "Places": "an observer",
    "EngineSeat": "numbers of an engine",
    "EngineInfo": "a message",
    "FleetUpdate": "a message",
    "RouteAsk": "a question",
    "Route": "its answer",
    "Sampling": "numbers for the engine",
    "Task": "flows",
    "Batch": "flows",
    "RunningGroup": "a component's own state",
    "Lease": "a message",
}
"""Dataclasses and named tuples that the first walk makes and that are no bags: what they are instead."""


class Call(NamedTuple):
    time: int
    file: str
    function: str


class Item(NamedTuple):
    """A line of a spine."""

    file: str
    function: str


class Written(NamedTuple):
    """What the page says of a walk."""

    spine: list[Item]
    also: list[str]

    @property
    def files(self) -> set[str]:
        return {item.file for item in self.spine} | set(self.also)


# ------------------------------------------------------------------------------------------------- what the page says

ITEM = re.compile(r"^\d+\. `(?P<file>[\w/]+\.py)` `(?P<function>[\w.]+)`", re.MULTILINE)


def written(walk: Walk, page: str | None = None) -> Written:
    section = _section(walk.heading, page or PAGE.read_text(encoding="utf-8"))
    also = _paragraph(section, "Also on the way:")
    return Written([Item(*found.groups()) for found in ITEM.finditer(section)], re.findall(r"`([\w/]+\.py)`", also))


def written_bags(page: str | None = None) -> list[str]:
    section = _section(WALKS["lease"].heading, page or PAGE.read_text(encoding="utf-8"))
    return re.findall(r"`(\w+)`", _paragraph(section, "Bags:"))


def _section(heading: str, page: str) -> str:
    _, found, rest = page.partition(f"\n### {heading}\n")
    if not found:
        raise SystemExit(f"{PAGE.name} has no section {heading!r}")
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def _paragraph(section: str, start: str) -> str:
    return next((part for part in section.split("\n\n") if part.strip().startswith(start)), "")


# --------------------------------------------------------------------------------------------------- what really runs


def trace(walk: Walk) -> list[Call]:
    """Train a tiny job in processes of its own; returns the calls of all of them, in order of time."""
    with tempfile.TemporaryDirectory(prefix="circle-") as folder:
        job, calls = Path(folder) / "circle.yaml", Path(folder) / "calls"
        job.write_text(f"{JOB}runtime: {walk.runtime}\n", encoding="utf-8")
        calls.mkdir()
        path = os.pathsep.join([str(HOOK), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "rollweave.cli.main", "train", str(job)]
        done = subprocess.run(
            [*command, "--out", str(Path(folder) / "run")],
            env={**os.environ, "PYTHONPATH": path, "ROLLWEAVE_CIRCLE": str(calls)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"the traced run failed:\n{done.stdout}{done.stderr}")
        return sorted(call for file in calls.glob("*.tsv") for call in _read(file))


def _read(file: Path) -> Iterator[Call]:
    for line in file.read_text(encoding="utf-8").splitlines():
        time, name, function = line.split("\t")
        yield Call(int(time), name, function)


class Step(NamedTuple):
    item: Item
    call: Call | None
    """None: it was not called after the item before it."""


def follow(spine: Iterable[Item], calls: list[Call]) -> list[Step]:
    """The spine as a subsequence of the calls, each item as early as it can be."""
    steps, place = [], 0
    for item in spine:
        found = next((n for n in range(place, len(calls)) if calls[n][1:] == item), None)
        steps.append(Step(item, None if found is None else calls[found]))
        place = place if found is None else found + 1
    return steps


def window(spine: list[Item], calls: list[Call]) -> list[Call]:
    """The calls from the first to the last of the spine."""
    times = [step.call.time for step in follow(spine, calls) if step.call is not None]
    return [call for call in calls if times and times[0] <= call.time <= times[-1]]


def files_on_the_way(walk: Walk, calls: Iterable[Call]) -> dict[str, list[str]]:
    """Files that count → their functions that were called, both in the order of the first call."""
    found: dict[str, list[str]] = {}
    for call in calls:
        if is_function(call.function) and exemption(walk, call.file) is None:
            functions = found.setdefault(call.file, [])
            if call.function not in functions:
                functions.append(call.function)
    return found


def is_function(name: str) -> bool:
    return not re.fullmatch(r"__\w+__", name.rpartition(".")[2])


def exemption(walk: Walk, file: str) -> str | None:
    """Why a file does not count; None: it does."""
    table = EXEMPT_ALWAYS | walk.exempt
    return next(
        (why for name, why in table.items() if file == name or (name.endswith("/") and file.startswith(name))), None
    )


# --------------------------------------------------------------------------------------------------------------- bags


def made_on_the_way(functions: dict[str, list[str]]) -> dict[str, str]:
    """Public dataclasses and named tuples that these functions make → the file that makes them."""
    known = {name for path in SOURCE.rglob("*.py") for name in _records(path) if not name.startswith("_")}
    made: dict[str, str] = {}
    for file, names in functions.items():
        for name, node in _functions(ast.parse((SOURCE / file).read_text(encoding="utf-8"))):
            if name in names:
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in known:
                        made.setdefault(call.func.id, file)
    return made


def _records(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            marks = [ast.unparse(mark) for mark in [*node.decorator_list, *node.bases]]
            if any(mark.startswith(("dataclass", "NamedTuple")) for mark in marks):
                yield node.name


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(node, ast.ClassDef):
                yield inside + node.name, node
            yield from _functions(node, f"{inside}{node.name}.")


# ------------------------------------------------------------------------------------------------------------ printing


def show(walk: Walk) -> None:
    page, calls = written(walk), trace(walk)
    steps = follow(page.spine, calls)
    for step in steps:
        if step.call is None:
            print(f"  NOT CALLED after the item before it: {step.item.file} {step.item.function}")
    inside = window(page.spine, calls)
    counted = files_on_the_way(walk, inside)
    spine = [item.file for item in page.spine]
    bars, total = walk.bars, len({*spine, *counted})
    print(f"\n{walk.name}: spine {len(spine)} (bar {bars.spine}), all {total} (bar {bars.all})")
    for file, functions in _all_files(inside).items():
        print(f"  {_class(walk, file, spine, counted):10} {file:36} {' '.join(functions[:5])}")
    also = [f"`{file}`" for file in counted if file not in spine]
    print(f"\n{_filled(['Also on the way:', *(f'{one},' for one in also[:-1]), *(f'{one}.' for one in also[-1:])])}\n")
    if walk.name == "lease":
        made = made_on_the_way(counted)
        print("Bags: " + ", ".join(f"{name} ({file})" for name, file in made.items() if name not in NOT_BAGS))


def _all_files(calls: Iterable[Call]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for call in calls:
        functions = found.setdefault(call.file, [])
        if call.function not in functions:
            functions.append(call.function)
    return found


def _class(walk: Walk, file: str, spine: list[str], counted: dict[str, list[str]]) -> str:
    if file in spine:
        return f"spine {spine.index(file) + 1}"
    return "also" if file in counted else "exempt" if exemption(walk, file) else "made only"


def _filled(words: list[str], width: int = 120) -> str:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def main(names: list[str]) -> None:
    for name in names or WALKS:
        show(WALKS[name])


if __name__ == "__main__":
    main(sys.argv[1:])
