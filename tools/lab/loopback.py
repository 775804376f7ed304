"""Several Ray nodes on loopback, for machines that refuse namespaces, and for users who are not root.

The hosts share the machine's disk, memory and network: a link cannot be limited or cut. What distinguishes them is a
variable in the environment of their processes, by which they can be killed together.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tools.lab.hosts import Hosts, RayHost, host_environment
from tools.lab.lab import check_names

MARK = "ROLLWEAVE_LAB_HOST"
"""Its value: the number of the lab's own process, and the name of the host."""

POLL_SECONDS = 0.02


class LoopbackHost(RayHost):
    """A Ray node of its own, and nothing else."""

    def __init__(self, name: str, ray_port: int, environment: dict[str, str], folder: Path) -> None:
        self._mark = f"{os.getpid()}/{name}"
        # Ray renames its processes; without the second variable the new name is written over their environment.
        super().__init__(name, "127.0.0.1", ray_port, {**environment, MARK: self._mark, "SPT_NOENV": "1"})
        self._folder = folder

    def command(self, command: Sequence[str]) -> list[str]:
        return list(command)

    def kill_all(self) -> None:
        while pids := [pid for pid, mark in marked_processes().items() if mark == self._mark]:
            kill(pids)
            time.sleep(POLL_SECONDS)

    def stop_ray(self) -> None:
        """`ray stop` would stop every Ray on the machine."""
        self.kill_all()

    def ray_options(self, is_head: bool) -> list[str]:
        """The nodes share one address: each takes ports that are free."""
        ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        return [*ports, f"--temp-dir={self._folder}"] if is_head else ports


class LoopbackLab(Hosts[LoopbackHost]):
    def __init__(self, names: Sequence[str], *, token: str | None = None) -> None:
        super().__init__(check_names(names), token)

    def _build(self, open: ExitStack) -> Iterator[LoopbackHost]:
        sweep()
        folder = Path(open.enter_context(tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True)))
        environment = host_environment(os.environ, self.token, str(folder))
        for name in self.names:
            host = LoopbackHost(name, free_port(), environment, folder / "ray")
            open.callback(host.kill_all)
            yield host


def marked_processes() -> dict[int, str]:
    """The processes of all labs of this kind on the machine, each with its mark."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or it is another user's
            for variable in (folder / "environ").read_bytes().split(b"\0"):
                name, _, value = variable.partition(b"=")
                if name == MARK.encode():
                    found[int(folder.name)] = value.decode()
    return found


def sweep() -> None:
    """End what a lab left whose own process was killed."""
    kill([pid for pid, mark in marked_processes().items() if not Path(f"/proc/{mark.partition('/')[0]}").exists()])


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port: int = some.getsockname()[1]
        return port
