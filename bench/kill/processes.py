"""The processes of a run, as the operating system sees them (Linux)."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

WORKERS = {"trainer": "TrainerWorker", "engine": "EngineWorker", "host": "HostWorker"}


def family(root: int) -> dict[int, str]:
    """A process and all its descendants: pid -> command line."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, line = {}, [root]
    while line:
        pid = line.pop()
        if command := command_of(pid):
            found[pid] = command
        line += children.get(pid, [])
    return found


def command_of(pid: int) -> str:
    """Empty for one that is gone (or about to be: nothing is left of it but its number)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def workers(members: dict[int, str], kind: str) -> list[int]:
    return [pid for pid, command in members.items() if WORKERS[kind] in command]


def survivors(members: dict[int, str]) -> dict[int, str]:
    """Who of them still lives; numbers that were given to others since do not count."""
    return {pid: command for pid, command in members.items() if _same(command_of(pid), command)}


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _same(now: str, before: str) -> bool:
    # Ray renames its workers as they work: ray::TrainerWorker.train_step, ray::TrainerWorker ...
    return now == before or (now.startswith("ray::") and now.split(".")[0] == before.split(".")[0])
