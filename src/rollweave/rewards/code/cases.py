"""The tests of a program: what it must print, or what must hold for its functions.

The answer is judged outside of the sandbox that it runs in. What a program must print never enters its sandbox; what is
asserted about its functions runs in a sandbox of its own (`remote.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollweave.errors import RewardFailed
from rollweave.rewards.code import remote
from rollweave.rewards.code.launch import MAIN, Contents, Launcher
from rollweave.rewards.code.sandbox import watch

INSIDE = Path(remote.__file__).read_bytes()
BLOCK = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CaseResult:
    passed: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class OutputCase:
    """The program reads `input` and must print `output`."""

    input: str
    output: str

    @property
    def key(self) -> bytes:
        return _digest(self.input, self.output)

    def check(self, launcher: Launcher, program: str, seconds: float) -> CaseResult:
        execution = launcher.run(program, self.input.encode(), seconds)
        printed = execution.stdout.decode(errors="replace")
        return CaseResult(execution.succeeded and _lines(printed) == _lines(self.output), execution.seconds)


@dataclass(frozen=True, slots=True)
class AssertCase:
    """Python code that must run to its end; it may use the program's functions and classes by name."""

    code: str

    @property
    def key(self) -> bytes:
        return _digest(self.code)

    def check(self, launcher: Launcher, program: str, seconds: float) -> CaseResult:
        with ExitStack() as stack:
            ours, theirs = socket.socketpair()
            verdict, write_verdict = os.pipe()
            stack.callback(os.close, verdict)
            os.set_blocking(verdict, False)  # what the tests have started may keep its other end
            with ours, theirs, os.fdopen(write_verdict, "wb"):
                served = _contents({remote.PROGRAM: program}, [theirs.fileno()], seconds)
                asked = _contents({remote.TESTS: self.code}, [ours.fileno(), write_verdict], seconds)
                serving, asking = (stack.enter_context(launcher.started(contents)) for contents in (served, asked))
            serving.begin()
            asking.begin()
            watch([serving, asking], asking, seconds)
            passed = asking.end == "exited" and _read(verdict) == remote.PASSED
        return CaseResult(passed, asking.execution().seconds)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, len(remote.PASSED))
    except BlockingIOError:
        return b""


def _contents(files: dict[str, str], inherited: list[int], seconds: float) -> Contents:
    given = {name: text.encode(errors="replace") for name, text in files.items()}
    return Contents({MAIN: INSIDE, **given}, list(map(str, inherited)), b"", seconds, inherited)


def read_cases(data: Any, where: str) -> list[OutputCase | AssertCase]:
    """The tests of a row, as they stand in its column. `where` is for messages."""
    if isinstance(data, str):
        return [AssertCase(data)]
    if isinstance(data, list) and data:
        return [_read_case(item, f"{where}[{number}]") for number, item in enumerate(data)]
    raise RewardFailed(f"{where} holds no tests: expected Python code, or a list of {_FORMS}, got {data!r:.100}")


_FORMS = "texts of Python code and {input: ..., output: ...}"


def _read_case(item: Any, where: str) -> OutputCase | AssertCase:
    if isinstance(item, str):
        return AssertCase(item)
    if isinstance(item, dict) and item.keys() == {"input", "output"} and all(isinstance(v, str) for v in item.values()):
        return OutputCase(item["input"], item["output"])
    raise RewardFailed(f"{where} is no test: expected one of {_FORMS}, both texts, got {item!r:.100}")


def find_program(answer: str) -> str:
    """The last block of code in an answer; an answer without blocks is a program as a whole."""
    blocks = BLOCK.findall(answer)
    return str(blocks[-1]) if blocks else answer


def _lines(text: str) -> list[str]:
    """What is compared: blanks at the end of a line, and empty lines at the end, are not."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _digest(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode(errors="replace"), digest_size=16).digest()
