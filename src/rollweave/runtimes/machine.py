"""The machine under a daemon: processes that outlive it, their cores, a lock, a secret, the time of day. Linux.

What decides (mux/) gets these things handed in, or asks for them here.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rollweave.errors import RollweaveError


class DaemonRunning(RollweaveError):
    pass


@dataclass(frozen=True, slots=True)
class Process:
    """A process number is given out again after its process is gone; together with its start time it never is."""

    pid: int
    started: int
    """Clock ticks after boot, as the kernel counts them."""


def wall_time() -> float:
    return time.time()


# --------------------------------------------------------------------------------------------------- processes


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Process:
    """Start a process that outlives us: a session of its own, its words go to a file."""
    with log.open("ab") as file:
        child = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    child.returncode = 0  # we ask the kernel, not Popen, which would complain about a child that it has not reaped
    return Process(child.pid, _started(child.pid) or 0)


def alive(process: Process) -> bool:
    return _ours(process) and not _ended(process.pid)


async def gone(process: Process) -> None:
    """Wait for its end, also if this process is not its parent."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if _ours(process):  # even if it is dead: until it is buried no other process gets its number
            await _readable(handle)
            with suppress(ProcessLookupError):  # whatever it started goes with it
                os.killpg(process.pid, signal.SIGKILL)
    finally:
        os.close(handle)
        _bury(process.pid)


def kill(process: Process) -> None:
    """The process and all it started."""
    if alive(process):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def interrupt(process: Process) -> None:
    """Ask it to end in order; what it started is its own business."""
    if alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)


def _bury(pid: int) -> None:
    with suppress(ChildProcessError):  # a daemon that came back is not the parent of its jobs
        os.waitpid(pid, os.WNOHANG)


async def _readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(handle, lambda: None if ended.done() else ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(handle)


def _ours(process: Process) -> bool:
    """Whether this number still means the process we started."""
    return _started(process.pid) == process.started


def _started(pid: int) -> int | None:
    """Ticks since boot; None if there is no such process."""
    found = _stat(pid)
    return int(found[19]) if found else None


def _ended(pid: int) -> bool:
    """Nothing is left of it but its number."""
    found = _stat(pid)
    return found is None or found[0] in "ZX"


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def use_cores(cores: Sequence[int]) -> None:
    """Pin this process, with every thread it has."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), set(cores))


def host_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


# ------------------------------------------------------------------------------------------- the state folder


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Alone on the state while the block runs. The lock dies with its process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise DaemonRunning(
                f"{folder} is in use by another daemon (process {owner}); look at it with `rollweave daemon status`, "
                "end it with `rollweave daemon stop`, or give this one another folder with --state"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def read_or_make_token(path: Path) -> str:
    """The secret that opens the daemon: a user who may read this file may give it orders."""
    if not path.exists():
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(24))
    return path.read_text().strip()
