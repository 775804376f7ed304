"""One sandbox, from the start of its program until nothing of it is left.

    this process ──▶ bwrap, the monitor ──▶ sh, process 1 in the sandbox ──▶ the program and what it starts

bubblewrap tells the pid of process 1 and then waits until this process holds a descriptor of it. Process 1 ends with
the program, and when it does, the kernel kills whatever else is in the sandbox, also what has left its session or its
parent, before the monitor sees the end. So once the monitor has ended, nothing is left. Killing process 1 is the way to
end a sandbox early. (bubblewrap's own process 1 would not do: its monitor does not wait for it.)
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from rollweave.errors import RewardFailed

START_SECONDS = 10.0
"""After which a sandbox that has not begun has failed."""
GONE_SECONDS = 30.0
"""Within which the kernel ends the processes of a sandbox that was killed; it takes milliseconds."""
READ_BYTES = 65536

LOOK_SECONDS = 0.05
MOST_FILES = 10_000
"""In a place that a program can write to. Its bytes are limited by its size, but the kernel takes a second to remove
half a million empty files, and bubblewrap cannot limit their number; so it is looked up, every `LOOK_SECONDS`."""

ProgramEnd = Literal["exited", "timeout", "output", "files"]
"""`output`, `files`: it wrote more than it may, or made more files."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What a program did."""

    end: ProgramEnd
    code: int
    """Its exit code, 128 + n after signal n; only if it exited."""
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def succeeded(self) -> bool:
        return self.end == "exited" and self.code == 0


@dataclass(frozen=True, slots=True)
class Launch:
    """What starts a sandbox."""

    command: Sequence[str]
    stdin: int
    inherited: Sequence[int]
    """Descriptors that the command gets beside the standard ones."""
    status: int | None = None
    """Where bubblewrap reports; none without bubblewrap."""
    gate: int | None = None
    """Whatever is written there lets the program begin."""
    scratch: Mapping[str, int] = field(default_factory=dict)
    """Where the program can write, and how many bytes."""
    folder: str | None = None
    """Where it starts."""
    environment: dict[str, str] = field(default_factory=dict)


class Sandbox:
    """Started by `begin`, watched by `watch`, ended by `close`, which every start needs."""

    def __init__(self, launch: Launch, output: int) -> None:
        """`output`: bytes that its program may write to each of stdout and stderr."""
        self._launch = launch
        self._output = output
        self._written: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._began = self._ended = 0.0
        self.end: ProgramEnd | None = None
        self._code: int | None = None
        self._process = subprocess.Popen(
            launch.command,
            stdin=launch.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=launch.environment,
            cwd=launch.folder,
            pass_fds=launch.inherited,
            start_new_session=True,
            bufsize=0,
        )
        self._monitor = os.pidfd_open(self._process.pid)
        self._first_pid = 0
        self._first: int | None = None
        """A descriptor of process 1 in the sandbox; a pid might already be another process's."""

    def begin(self) -> None:
        """Let the program begin. Its time counts from here."""
        if self._launch.status is not None and self._launch.gate is not None:
            self._first_pid = self._first_process(self._launch.status)
            self._first = os.pidfd_open(self._first_pid)
            os.write(self._launch.gate, b"+")
        self._began = time.monotonic()

    def register(self, selector: selectors.BaseSelector) -> None:
        """What `watch` has to look at, each with what to call then."""
        for name in self._written:
            pipe = getattr(self._process, name)
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, partial(self._read, name, selector))
        selector.register(self._monitor, selectors.EVENT_READ, partial(self.finish, "exited"))

    def look(self) -> None:
        """End it if it has made too many files."""
        if self._first is None or self.end is not None:
            return
        with suppress(OSError):  # it may have ended
            for folder, size in self._launch.scratch.items():
                found = os.statvfs(f"/proc/{self._first_pid}/root{folder}")
                # Until bubblewrap has changed the root, this is a directory of the machine: its size tells.
                if found.f_blocks * found.f_frsize == size and found.f_files - found.f_ffree > MOST_FILES:
                    self.finish("files")

    def finish(self, end: ProgramEnd) -> None:
        if self.end is None:
            self.end = end
            self._ended = time.monotonic()

    def close(self) -> None:
        """End whatever runs in it, and wait until all of it is gone."""
        if self._first is not None:
            _kill(self._first)  # the monitor reaps it and ends too
        elif self._launch.status is None:
            with suppress(ProcessLookupError):  # without bubblewrap there is only the process group
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            _kill(self._monitor)
        gone = readable(self._monitor, GONE_SECONDS)
        if gone:
            self._process.wait()
            self._code = self._exit_code()
        if self._first is not None:
            os.close(self._first)
        os.close(self._monitor)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        if not gone:
            raise RewardFailed(f"a sandbox (process {self._process.pid}) was killed and does not end")

    def execution(self) -> Execution:
        """What became of the program; after `close`. Raises RewardFailed if it never ran."""
        assert self.end is not None, "it was not watched until its end"
        stdout, stderr = (bytes(written[: self._output]) for written in self._written.values())
        if self.end == "exited" and self._code is None:
            raise RewardFailed(f"the sandbox failed, so the program has no score: {_words(stderr)}")
        return Execution(self.end, self._code or 0, stdout, stderr, self._ended - self._began)

    # --------------------------------------------------------------------------------------------------------- parts

    def _first_process(self, status: int) -> int:
        said, last = b"", time.monotonic() + START_SECONDS
        while b"\n" not in said:
            data = os.read(status, READ_BYTES) if readable(status, max(0.0, last - time.monotonic())) else b""
            if not data:
                self._process.kill()
                raise RewardFailed(f"the sandbox did not start: {_words(self._process.communicate()[1])}")
            said += data
        pid: int = json.loads(said.partition(b"\n")[0])["child-pid"]
        return pid

    def _exit_code(self) -> int | None:
        """As bubblewrap reports it, which it does only if the program has run."""
        if self._launch.status is None:
            code: int = self._process.returncode
            return code if code >= 0 else 128 - code
        os.set_blocking(self._launch.status, False)
        with suppress(BlockingIOError):
            for line in os.read(self._launch.status, READ_BYTES).splitlines():
                if "exit-code" in (report := json.loads(line)):
                    return int(report["exit-code"])
        return None

    def _read(self, name: str, selector: selectors.BaseSelector) -> None:
        pipe = getattr(self._process, name)
        try:
            data = os.read(pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        self._written[name] += data
        if not data:
            selector.unregister(pipe)
        if len(self._written[name]) > self._output:
            self.finish("output")


def watch(sandboxes: Sequence[Sandbox], main: Sandbox, seconds: float) -> None:
    """Until the main one has ended, or one has written too much or made too many files, or the time is over."""
    last = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for sandbox in sandboxes:
            sandbox.register(selector)
        while main.end is None:
            if (left := last - time.monotonic()) <= 0:
                main.finish("timeout")
                break
            _call(selector, min(left, LOOK_SECONDS))
            for sandbox in sandboxes:
                sandbox.look()
                if sandbox.end in ("output", "files"):
                    main.finish(sandbox.end)
        _call(selector, 0.0)  # what it wrote last may still lie in the pipes


def _call(selector: selectors.BaseSelector, seconds: float) -> None:
    for key, _ in selector.select(seconds):
        call: Callable[[], Any] = key.data
        call()


def readable(descriptor: int, seconds: float) -> bool:
    """Whether it can be read (a process's: has ended) within this time. `select.select` knows only the first 1,024."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _kill(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _words(stderr: bytes) -> str:
    return stderr.decode(errors="replace").strip()[-300:] or "it said nothing"
