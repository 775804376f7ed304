"""Names in docs and docstrings that do not exist: `python -m tools.lint_names [FILE ...]`.

A page that names a file, class, key or command which has since been renamed sends its reader the wrong way, and no
test notices. Looked at: `docs/*.md`, `README.md`, `CONTRIBUTING.md`, and the docstrings and comments below `src/`.
Looked for: names in backticks, names of classes in running text, commands and imports in code blocks of pages.
`CHANGELOG.md` tells history and is left alone. Names from outside stand in `tools/outside_names.txt`.

What a name in backticks is said to be follows from its shape, see `KINDS`. A single lower-case word can be anything
and is not looked at.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.known_names import KnownNames, docstrings_of, learn_names

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = frozenset(
    word
    for line in (ROOT / "tools" / "outside_names.txt").read_text(encoding="utf-8").splitlines()
    for word in line.partition("#")[0].split()
)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    file: str
    line: int
    name: str
    near: tuple[str, ...] = ()

    def __str__(self) -> str:
        hint = f" (nearest: {', '.join(self.near)})" if self.near else ""
        return f"{self.file}:{self.line}: `{self.name}` does not exist{hint}"


# ------------------------------------------------------------------------------------------------- what a name may be
# A check returns None if the name exists, else the names that exist and might have been meant.

Candidates = Iterable[str]
Check = Callable[[KnownNames, re.Match[str]], Candidates | None]


def check_path(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    path = match["path"].removeprefix("./").removeprefix("../")
    exists = path in OUTSIDE or names.has_path(path)
    last = path.rstrip("/").rpartition("/")[2]
    return None if exists else [file for file in names.files if last in file] or names.files


def check_test(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    if names.has_test(match["path"], match["test"]):
        return None
    return names.tests()


def check_dotted(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    """A module, a key of the job file, an event, or an attribute of some value."""
    dotted = match["dotted"].replace("[]", "")
    first, *_, last = dotted.split(".")
    if first in OUTSIDE or dotted in OUTSIDE or dotted in names.strings or names.has_dotted(dotted):
        return None
    if first in {module.partition(".")[0] for module in names.modules}:
        return names.modules
    if names.has_attribute_of_value(first, last):
        return None
    if names.starts_key(first):
        return None if names.has_key(dotted) else names.keys()
    return None if last in names.words or last in OUTSIDE else names.words


def check_class(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    name, attribute = match["name"], match["attribute"]
    if name in OUTSIDE or hasattr(builtins, name):
        return None
    if name not in names.words:
        return None if name.removesuffix("s") in names.words else names.classes
    if not attribute or names.has_attribute(name, attribute):
        return None
    return [f"{name}.{known}" for known in names.attributes_of(name)]


def check_call(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    first, last = match["dotted"].split(".")[0], match["dotted"].split(".")[-1]
    exists = {first, last} & OUTSIDE or last in names.words or hasattr(builtins, last)
    return None if exists else names.words


def check_metric(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    key = match[0]
    if key.partition("/")[0] not in names.metric_starts() or key in OUTSIDE:
        return None
    return None if names.has_metric(key) else names.metrics()


def check_word(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    return None if match[0] in names.words or match[0] in OUTSIDE else names.words


def check_command(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    command, path = names.command, "rollweave"
    for word in _shell_words(match["rest"]):
        if word in command.commands:
            command, path = command.commands[word], f"{path} {word}"
        elif command.commands and re.fullmatch(r"[a-z][a-z-]*", word):
            return [f"{path} {known}" for known in command.commands]
        elif word.startswith("-") and word.partition("=")[0] not in command.options:
            return [f"{path} {option}" for option in command.options]
    return None


def _shell_words(text: str) -> list[str]:
    """The words of one command, up to what is only said about it: after a pipe, a comment or several blanks."""
    command = re.split(r"\s{2,}| && | > | \| |; | #", text)[0]
    return re.sub(r"[\[\]|]", " ", command).split()


def check_make(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    return None if match["target"] in names.make_targets else [f"make {target}" for target in names.make_targets]


def check_run(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    module = match["module"]
    exists = module in names.modules or module in OUTSIDE or module.rpartition(".")[2].isupper()
    return None if exists else names.modules


def check_import(names: KnownNames, match: re.Match[str]) -> Candidates | None:
    known = names.modules.get(match["module"], set())
    wanted = re.findall(r"\w+", match["names"])
    submodules = {name.rpartition(".")[2] for name in names.modules if name.startswith(f"{match['module']}.")}
    return None if all(name in known or name in submodules for name in wanted) else known or names.modules


_DOTTED = r"[a-z_]\w*(?:\[\])?(?:\.\w+(?:\[\])?)+"
KINDS: tuple[tuple[re.Pattern[str], Check], ...] = (
    (re.compile(r"(?P<path>[\w./-]*)::(?P<test>\w+)"), check_test),
    (re.compile(r"(?P<path>[\w./-]+\.(?:py|md|toml))(?::\d+)?"), check_path),
    (re.compile(r"(?P<path>[\w./-]+/[\w-]+\.(?:yaml|json|txt))"), check_path),
    (re.compile(r"(?P<path>[\w.-]+(?:/[\w.-]+)*/)"), check_path),
    (re.compile(r"(?:[\w/.]+/)?rollweave (?P<rest>.+)"), check_command),
    (re.compile(r"make (?P<target>[a-z]+)\b.*"), check_make),
    (re.compile(r"(?:\S*/)?python -m (?P<module>[\w.]+).*"), check_run),
    (re.compile(r"from (?P<module>rollweave[\w.]*) import (?P<names>[^#]+).*"), check_import),
    (re.compile(r"[a-z_]+/[\w<>/+*-]+"), check_metric),
    (re.compile(r"(?P<name>[A-Z][a-z]\w*)(?:\.(?P<attribute>\w+))?(?:\(.*\))?"), check_class),
    (re.compile(r"(?P<name>[A-Z]{2,}[a-z]\w*)(?:\.(?P<attribute>\w+))?(?:\(.*\))?"), check_class),
    (re.compile(rf"(?P<dotted>{_DOTTED})(?:\s*[:=]\s*[^/]*)?"), check_dotted),
    (re.compile(r"(?P<dotted>[a-z_][\w.]*)\(.*\)"), check_call),
    (re.compile(r"[a-z]+_\w+|_\w+|[A-Z]+_[A-Z_]+"), check_word),
)
"""The shape of a name, in full, and the check of what has that shape. The first that fits is taken."""

IN_CODE_BLOCKS = (check_command, check_make, check_run, check_import)
IN_PROSE: tuple[tuple[re.Pattern[str], Check], ...] = (
    (re.compile(r"(?<![\w`./-])(?P<name>[A-Z][a-z]+(?:[A-Z][a-z]+)+)(?P<attribute>)(?![\w`/-])"), check_class),
    (re.compile(r"(?<![\w`./:-])(?P<path>(?:[\w-]+/)+[\w-]+\.(?:py|md))\b"), check_path),
    (re.compile(r"\]\((?P<path>[\w./-]+\.md)(?:#[\w-]+)?\)"), check_path),
)
"""What is looked for outside backticks too: names of classes (also in the plural), paths, links to pages."""


def check_name(names: KnownNames, name: str, checks: Iterable[Check] | None = None) -> Candidates | None:
    for shape, check in KINDS:
        if (match := shape.fullmatch(name)) and (checks is None or check in checks):
            return check(names, match)
    return None


# --------------------------------------------------------------------------------------------------- where names stand


@dataclass(frozen=True, slots=True)
class Text:
    """Running text and the line of the file that it begins at."""

    content: str
    line: int = 1

    def line_of(self, position: int) -> int:
        return self.line + self.content.count("\n", 0, position)


FENCE = re.compile(r"^[ ]*```.*?^[ ]*```[ ]*$", re.MULTILINE | re.DOTALL)
TICKS = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def lint(paths: Iterable[Path], names: KnownNames) -> list[Finding]:
    return sorted(finding for path in paths for finding in check(path.read_text(encoding="utf-8"), _show(path), names))


def _show(path: Path) -> str:
    return str(path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path)


def check(source: str, file: str, names: KnownNames) -> list[Finding]:
    """What a page (or, if it is Python, its docstrings and comments) names that does not exist."""
    if file.endswith(".py"):
        return [finding for text in _python_texts(source) for finding in _check_text(text, file, names)]
    prose = FENCE.sub(lambda block: "\n" * block[0].count("\n"), source)
    return [*_check_text(Text(prose), file, names), *_check_blocks(source, file, names)]


def _check_text(text: Text, file: str, names: KnownNames) -> Iterator[Finding]:
    for match in TICKS.finditer(text.content):
        name = " ".join(match[1].split())
        yield from _finding(check_name(names, name), name, file, text.line_of(match.start()))
    prose = TICKS.sub(lambda ticked: re.sub(r"[^\n]", "`", ticked[0]), text.content)
    for shape, check in IN_PROSE:
        for match in shape.finditer(prose):
            yield from _finding(check(names, match), match[0].strip("]()"), file, text.line_of(match.start()))


def _check_blocks(source: str, file: str, names: KnownNames) -> Iterator[Finding]:
    for block in FENCE.finditer(source):
        start = Text(source).line_of(block.start())
        for number, line in enumerate(block[0].splitlines()):
            command = re.sub(r"^\s*(?:\$ )?", "", line).partition("  #")[0].rstrip(" \\")
            yield from _finding(check_name(names, command, IN_CODE_BLOCKS), command, file, start + number)


def _finding(candidates: Candidates | None, name: str, file: str, line: int) -> Iterator[Finding]:
    if candidates is not None:
        yield Finding(file, line, name, tuple(difflib.get_close_matches(name, sorted(candidates), n=2, cutoff=0.5)))


def _python_texts(source: str) -> Iterator[Text]:
    for docstring in docstrings_of(ast.parse(source)):
        yield Text(str(docstring.value), docstring.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.string, token.start[0])


def files_to_read() -> list[Path]:
    pages = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*pages, *sorted((ROOT / "src").rglob("*.py"))]


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments] or files_to_read()
    findings = lint(paths, learn_names(ROOT))
    for finding in findings:
        print(finding)
    print(f"names: {len(paths)} files, {len(findings)} names that do not exist")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
