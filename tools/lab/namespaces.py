"""Namespaces that live as long as a process of the lab holds them, and the scripts that furnish them.

No namespace has a name in the file system. A process holds it (see `Holder`), and that process ends when its standard
input is closed: at the end of the lab, or by the kernel when the lab's own process is killed. With the last process of
a namespace the kernel removes its interfaces and mounts. So nothing is ever left to be swept.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from tools.lab.hosts import LabError

OWN_FOLDERS = ("/tmp", "/dev/shm", "/run")
"""Each host has a tmpfs over these."""

RUN_FOLDER = "/run/lab"
"""Where the commands of a host start."""

HOME = "/tmp/home"

STAGING = "/mnt"
"""Where folders wait while a tmpfs is put over the place where they lie."""

CLOSE_SECONDS = 20.0
"""Until the kernel has ended all processes of a namespace."""

SWITCH_FLAGS = ("--net",)
HOST_FLAGS = ("--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child")

HOLD = "exec env --ignore-signal=CHLD cat"
"""`cat` ends with its standard input. As process 1 it gets all orphans; with the signal ignored, the kernel removes the
dead ones."""


class Holder:
    """A process that keeps namespaces alive until it is closed, or until the process that made it is gone."""

    def __init__(self, flags: Sequence[str], script: str, name: str) -> None:
        self._process = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", script, f"rollweave-lab-{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the lab
        )
        try:
            self.pid = self._first_line(name)
            """Of a process inside, as the world outside numbers it."""
        except BaseException:
            self.close()
            raise

    def _first_line(self, name: str) -> int:
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._process.stderr.read().decode(errors="replace").strip()
            raise LabError(f"the lab could not make the namespaces of {name}: {said}")
        return int(line)

    def close(self) -> None:
        """All processes inside are gone when this returns."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


RETRY_PAUSE = "/proc/sys/net/ipv4/tcp_rto_max_ms"
"""The longest pause between two retries of TCP, in Linux since 6.15. By default it doubles up to two minutes, so that a
link that was cut for 40 s is used again 17 s after it was healed, and Ray has given the node up by then."""


def switch_script() -> str:
    """The bridge that joins the hosts. Its ports say nothing of their own, so that a cut link is silent."""
    ipv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
    return "\n".join(
        [
            "set -e",
            f"[ ! -e {ipv6} ] || echo 1 > {ipv6}",
            "ip link add bridge type bridge",
            "ip link set bridge up",
            "echo $$",
            HOLD,
        ]
    )


def host_script(name: str, addresses: Mapping[str, str], mounts: Iterable[str], keep: Iterable[str]) -> str:
    """The folders of a host. All disks are read-only, so that no host can leave anything there for another.

    `addresses`: of all hosts, by name. `mounts`: what is mounted on the machine. `keep`: folders that stay visible,
    also where one of the host's own covers them.
    """
    covered = [quote(folder) for folder in covered_folders(keep)]
    table = [f"{address} {host}" for host, address in {"localhost": "127.0.0.1", **addresses}.items()]
    return "\n".join(
        [
            "set -e",
            "read -r pid rest < /proc/self/stat",  # before /proc shows the numbers of this namespace
            "mount --make-rprivate /",
            *(f"mount -o remount,bind,ro {quote(folder)}" for folder in disks(mounts)),
            f"mount -t tmpfs tmpfs {STAGING}",
            *(f"mkdir -p {STAGING}{folder} && mount --rbind {folder} {STAGING}{folder}" for folder in covered),
            *(f"mount -t tmpfs tmpfs {folder}" for folder in OWN_FOLDERS),
            *(f"mkdir -p {folder} && mount --rbind {STAGING}{folder} {folder}" for folder in covered),
            *(f"mount -o remount,bind,ro {folder}" for folder in covered),
            f"umount --lazy {STAGING}",
            "mount -t proc proc /proc",
            "mount -t sysfs sysfs /sys",  # shows the interfaces of this namespace
            f"mkdir {RUN_FOLDER} {HOME}",
            f"printf '%s\\n' {' '.join(quote(line) for line in table)} > /run/hosts",
            "mount --bind /run/hosts /etc/hosts",
            f"echo {name} > /proc/sys/kernel/hostname",
            "ip link set lo up",
            f"[ ! -e {RETRY_PAUSE} ] || echo 2000 > {RETRY_PAUSE}",
            f"cd {RUN_FOLDER}",
            'echo "$pid"',
            HOLD,
        ]
    )


def covered_folders(keep: Iterable[str]) -> list[str]:
    """The folders that a host's own ones would hide, outer ones before those inside them."""
    return sorted({folder for folder in keep if is_below(folder, OWN_FOLDERS)})


def disks(mounts: Iterable[str]) -> list[str]:
    """The mounted folders that hosts could write to and share. (Devices are no way to pass files; a host's own folders
    cover what is mounted below them.)"""
    return sorted({folder for folder in mounts if not is_below(folder, ("/proc", "/sys", "/dev", *OWN_FOLDERS))})


def is_below(folder: str, parents: Iterable[str]) -> bool:
    """Whether it is one of the parents, or lies in one."""
    return any(folder == parent or folder.startswith(f"{parent}/") for parent in parents)


def mounted_folders(table: str) -> list[str]:
    """From the text of /proc/self/mounts."""
    folders = (line.split()[1] for line in table.splitlines())
    return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), folder) for folder in folders]


def current_mounts() -> list[str]:
    return mounted_folders(Path("/proc/self/mounts").read_text(encoding="utf-8"))
