"""What the tests of sandboxes share: a launcher, where there can be one, and a look at what is left behind."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from rollweave.errors import ConfigError
from rollweave.rewards.code.cgroups import PREFIX
from rollweave.rewards.code.launch import INSTALL, NOBODY, Launcher


@cache
def make_launcher() -> Launcher | None:
    try:
        return Launcher()
    except ConfigError:
        return None


def launcher_or_skip() -> Launcher:
    launcher = make_launcher()
    if launcher is None:
        pytest.skip(f"no sandbox can be made here: {INSTALL}")
    return launcher


def open_to_others(folder: Path) -> None:
    """Let the user of sandboxes look into a temporary folder."""
    while not folder.name.startswith("pytest-of-") and folder.parent != folder:
        folder.chmod(0o755)
        folder = folder.parent
    folder.chmod(0o755)


def processes_in_namespaces() -> set[int]:
    """Pids of the processes that are in a pid namespace below this one, and belong to the user of sandboxes."""
    found, user = set[int](), NOBODY if os.geteuid() == 0 else str(os.geteuid())
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except OSError:
            continue
        lines = dict(line.split(":", 1) for line in status.splitlines())
        if len(lines.get("NSpid", "").split()) > 1 and lines["Uid"].split()[0] == user:
            found.add(int(folder.name))
    return found


def left_behind() -> dict[str, set[str]]:
    """What a sandbox could leave behind: compare it before and after."""
    cgroups = {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{PREFIX}{os.getpid()}-*")}
    return {
        "processes": {str(pid) for pid in processes_in_namespaces()},
        "cgroups": cgroups,
        "files": {
            str(path)
            for folder in ("/tmp", "/dev/shm", "/var/tmp")
            for path in Path(folder).glob("*")
            if _is_ours(path)
        },
        "descriptors": set(os.listdir("/proc/self/fd")),
    }


def _is_ours(path: Path) -> bool:
    """Whether it can be a sandbox's: other programs write to these folders too."""
    try:
        return str(path.lstat().st_uid) == NOBODY or path.name.startswith("rollweave-unsafe")
    except OSError:
        return False
