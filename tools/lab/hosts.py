"""What the hosts of every lab can do: run commands, start and stop a Ray node, and die.

`Lab` gives each host namespaces of its own; `LoopbackLab` only a name, where namespaces are refused.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rollweave.errors import RollweaveError

Process = subprocess.Popen[bytes]
Finished = subprocess.CompletedProcess[str]

ROOT = Path(__file__).resolve().parents[2]

OBJECT_STORE_MB = 256
"""Of each Ray node: the memory of the machine is shared by all hosts."""

RAY_SECONDS = 120.0
"""A Ray node that is not up by then does not come up. A wrong token is noticed by Ray after 20 s."""

OUTPUT_LINES = 20
"""How much of a failed command's output is shown."""

NOT_INHERITED = (
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "ftp_proxy",
    "grpc_proxy",
    "tmpdir",
    "pythonhome",
)
"""Variables, in any case, that would lead out of a host. Proxies reach gRPC, and so Ray."""


class LabError(RollweaveError):
    """The lab cannot be built, or a command in it failed."""


class RayHost(ABC):
    """One host of a lab, and the Ray node on it."""

    def __init__(self, name: str, address: str, ray_port: int, environment: Mapping[str, str]) -> None:
        self.name = name
        self.address = address
        """The IP address that other hosts reach it at."""
        self.environment = dict(environment)
        """The variables of all its commands."""
        self._ray_port = ray_port
        self._started: list[Process] = []

    @abstractmethod
    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on this host."""

    @abstractmethod
    def kill_all(self) -> None:
        """`kill -9` of all processes of this host together; those of other hosts live on."""

    @abstractmethod
    def stop_ray(self) -> None:
        """Stop the Ray node, if there is one."""

    @abstractmethod
    def ray_options(self, is_head: bool) -> list[str]:
        """Options of `ray start` that depend on the kind of lab."""

    @property
    def ray_address(self) -> str:
        """Where the cluster answers whose head is on this host."""
        return f"{self.address}:{self._ray_port}"

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> Finished:
        """Run a command on this host to its end. Raises LabError if it fails, unless `check` is false."""
        process = self._popen(command, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            said, errors = process.communicate(timeout=timeout)
        except BaseException as error:
            _kill_group(process)
            said, errors = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise LabError(self._failure(command, f"took longer than {timeout:g} s", said + errors)) from error
            raise
        if check and process.returncode:
            raise LabError(self._failure(command, f"ended with code {process.returncode}", said + errors))
        return Finished(list(command), process.returncode, said.decode(), errors.decode())

    def start(self, command: Sequence[str], env: Mapping[str, str] | None = None, log: Path | None = None) -> Process:
        """Start a command on this host. Its output goes to `log`, a file outside of the lab; without one, nowhere."""
        with (log or Path(os.devnull)).open("ab") as output:
            process = self._popen(command, env, stdout=output, stderr=subprocess.STDOUT)
        self._started = [*(one for one in self._started if one.poll() is None), process]
        return process

    def start_ray(
        self,
        head: RayHost | None = None,
        *,
        num_cpus: float = 1,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Start a Ray node that joins the cluster of `head`, or without one is the head of its own. Returns the address
        of the cluster."""
        cluster = (head or self).ray_address
        be_head = ["--head", f"--port={self._ray_port}", "--include-dashboard=false"]
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats"),
            *(be_head if head is None else [f"--address={cluster}"]),
            f"--node-ip-address={self.address}",
            f"--num-cpus={num_cpus:g}",
            f"--object-store-memory={OBJECT_STORE_MB * 2**20}",
            f"--resources={json.dumps(dict(resources or {}))}",
            *([f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}"] if labels else []),
            *self.ray_options(is_head=head is None),
        ]
        self.run(command, env, timeout=RAY_SECONDS)
        return cluster

    def _kill_started(self) -> None:
        for process in self._started:
            if process.poll() is None:
                _kill_group(process)
            process.wait()

    def _popen(self, command: Sequence[str], env: Mapping[str, str] | None, stdout: Any, stderr: Any) -> Process:
        return subprocess.Popen(
            self.command(command),
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is for the lab, which takes everything down in its order
        )

    def _failure(self, command: Sequence[str], what: str, output: bytes) -> str:
        lines = output.decode(errors="replace").splitlines()[-OUTPUT_LINES:]
        return "\n".join([f"{self.name}: `{shlex.join(command)}` {what}", *(f"  {line}" for line in lines)])


Host = TypeVar("Host", bound=RayHost, covariant=True)


class Hosts(ABC, Generic[Host]):
    """The hosts of a lab by name: built when the block begins, gone when it ends, however it ends."""

    def __init__(self, names: Sequence[str], token: str | None = None) -> None:
        self.names = tuple(names)
        self.token = token or secrets.token_hex(32)
        """Ray's. All hosts have it in their environment; a command may be given another one."""
        self._hosts: dict[str, Host] = {}
        self._open = ExitStack()

    @abstractmethod
    def _build(self, open: ExitStack) -> Iterator[Host]:
        """Make the hosts; what takes them down again goes on the stack."""

    def __enter__(self) -> Self:
        with ExitStack() as open:
            self._hosts = {host.name: host for host in self._build(open)}
            self._open = open.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hosts.clear()
        self._open.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())


def host_environment(inherited: Mapping[str, str], token: str, home: str) -> dict[str, str]:
    """The variables of a host's commands: those of the lab without what would lead out of the host, and Ray's token.
    The checkout can be imported from, though commands start elsewhere, and the commands of its venv are found."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name.lower() not in NOT_INHERITED and not name.startswith(("RAY_", "XDG_"))
    }
    modules = os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")]))
    commands = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), inherited.get("PATH")]))
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    return kept | ray | {"HOME": home, "PYTHONPATH": modules, "PATH": commands}


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
