"""Limits that hold for all processes of a sandbox together: memory, number of processes, share of the cores.

A limit of a process (rlimit) does not add up: sixteen processes may each use as much memory as one may. A cgroup adds
up, but not every user may make one, so it is used where it can be. In version 1 every controller has a tree of its own
and a sandbox gets a folder in each; in version 2 there is one tree, and its folders can have limits only below a
folder that hands the controllers on.

A process enters by itself, before it becomes bubblewrap. To move another process, the kernel stops all forks of the
machine for about 10 ms; a thread that moves itself, which version 1 allows, does not cost that.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "rollweave-sandbox-"
CONTROLLERS = ("memory", "pids", "cpu")
REMOVE_SECONDS = 2.0
ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 1; shift; done; shift; exec /usr/bin/env -i "$@"'
"""A shell adds variables of its own to the environment."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The folders of one sandbox, one in version 2, one for each controller in version 1."""

    folders: tuple[Path, ...]
    door: str
    """The file of a folder in which a process writes itself down."""

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command, as one that enters first; what it starts later is inside too."""
        return ["/bin/sh", "-c", ENTER, "sh", *(str(folder / self.door) for folder in self.folders), "--", *command]

    def remove(self) -> None:
        """The kernel refuses while a process that was killed is not quite gone."""
        last = time.monotonic() + REMOVE_SECONDS
        for folder in self.folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > last:
                        break
                    time.sleep(0.002)


class CgroupMaker:
    """Makes cgroups with equal limits. Raises OSError where this process may not make any."""

    def __init__(self, memory: int, processes: int, root: Path = ROOT, own: str | None = None) -> None:
        """`root`, `own`: where the trees are, and what the kernel says of this process; tests give others."""
        settings = _settings_v2 if (root / "cgroup.controllers").exists() else _settings_v1
        paths = dict(_own_paths(Path("/proc/self/cgroup").read_text() if own is None else own))
        self._settings = settings(root, paths, memory, processes)
        self._numbers = itertools.count()
        self.version = 2 if settings is _settings_v2 else 1
        if not self._settings:
            raise PermissionError("no cgroup with limits may be made here")
        for parent in self._settings:
            _sweep(parent)
        self.make().remove()

    def make(self) -> Cgroup:
        name = f"{PREFIX}{os.getpid()}-{next(self._numbers)}"
        door = "tasks" if self.version == 1 else "cgroup.procs"
        made = Cgroup(tuple(parent / name for parent in self._settings), door)
        try:
            for parent, values in self._settings.items():
                (parent / name).mkdir()
                for file, value in values.items():
                    if (parent / name / file).exists():  # swap is not counted everywhere
                        (parent / name / file).write_text(value)
        except OSError:
            made.remove()
            raise
        return made


Settings = Mapping[Path, Mapping[str, str]]
"""What to write into which files of a new folder, by the folder that it is made in."""


def _own_paths(text: str) -> Iterator[tuple[str, str]]:
    """The path of this process in the tree of each controller; the tree of version 2 is that of ''."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield from ((controller, path) for controller in controllers.split(","))


def _settings_v1(root: Path, paths: Mapping[str, str], memory: int, processes: int) -> Settings:
    values = {
        "memory": {"memory.limit_in_bytes": str(memory), "memory.memsw.limit_in_bytes": str(memory)},
        "pids": {"pids.max": str(processes)},
        "cpu": {},  # all of its processes together weigh as much as one process outside
    }
    found: dict[Path, Mapping[str, str]] = {}
    for controller in CONTROLLERS:
        own = root / controller / paths.get(controller, "/").lstrip("/")
        parent = own if own.is_dir() else root / controller  # in a container the path may be that outside of it
        if os.access(parent, os.W_OK):
            found[parent] = values[controller]
    return found


def _settings_v2(root: Path, paths: Mapping[str, str], memory: int, processes: int) -> Settings:
    values = {
        "memory.max": str(memory),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(processes),
    }
    own = root / paths.get("", "/").lstrip("/")
    # A folder with processes, such as our own, cannot hand controllers on; then it may be the one above that does.
    for parent in (own, own.parent):
        handed_on = parent / "cgroup.subtree_control"
        if not parent.is_relative_to(root) or not handed_on.is_file() or not os.access(parent, os.W_OK):
            continue
        if {"memory", "pids"} <= set(handed_on.read_text().split()):
            return {parent: values}
    return {}


def _sweep(parent: Path) -> None:
    """Remove what processes that were killed left behind; a folder that is in use cannot be removed."""
    for folder in parent.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            with suppress(OSError):
                folder.rmdir()
