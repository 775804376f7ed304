"""The lab: hosts with network, mount and process namespaces of their own, joined by a bridge.

    head ──eth0──┐
    h20  ──eth0──┼── bridge        each link can be limited, cut and healed at its port
    cpu  ──eth0──┘

Nothing passes between hosts except over the network. The disks of the machine are visible to all of them (checkout,
interpreter and venv lie there), but read-only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tools.lab.hosts import ROOT, Hosts, LabError, RayHost, host_environment
from tools.lab.namespaces import (
    HOME,
    HOST_FLAGS,
    RUN_FOLDER,
    SWITCH_FLAGS,
    Holder,
    current_mounts,
    host_script,
    switch_script,
)

NETWORK = "10.88.0"
"""Of the hosts. It exists in the lab only, so it collides with nothing."""
MOST_HOSTS = 250
RAY_PORT = 6379

TOOLS = ("ip", "tc", "unshare", "nsenter", "taskset", "mount")

BURST = ("burst", "256kb", "latency", "400ms")
"""Of a limited link: what may pass at once, and how long a packet waits before it is dropped."""


class LabHost(RayHost):
    """One host of a `Lab`."""

    def __init__(
        self,
        name: str,
        address: str,
        environment: Mapping[str, str],
        inside: Holder,
        switch: Holder,
        port: str,
        cores: Sequence[int] = (),
    ) -> None:
        super().__init__(name, address, RAY_PORT, environment)
        self._inside = inside
        self._switch = switch
        self._port = port
        self._cores = cores

    @property
    def pid(self) -> int:
        """A process that holds the host's namespaces, for `nsenter`."""
        return self._inside.pid

    def command(self, command: Sequence[str]) -> list[str]:
        pinned = ["taskset", "--cpu-list", ",".join(map(str, self._cores))] if self._cores else []
        return [*enter(self.pid), *pinned, *command]

    def path(self, inside: str) -> Path:
        """A file of this host as the world outside sees it: `path("/tmp/log.txt").read_text()`."""
        return Path(f"/proc/{self.pid}/root{os.path.join(RUN_FOLDER, inside)}")

    def kill_all(self) -> None:
        # One system call; it spares process 1, which holds the namespaces. It fails if there is none to be killed.
        self.run(["sh", "-c", "kill -9 -1"], check=False)
        self._kill_started()  # those that were not inside yet

    # -------------------------------------------------------------------------------------------------- the link

    def cut(self) -> None:
        """Cut the link: packets vanish in both directions, and no host is told."""
        self._at_switch("ip", "link", "set", self._port, "nomaster")

    def heal(self) -> None:
        self._at_switch("ip", "link", "set", self._port, "master", "bridge")

    def limit(self, rate: str) -> None:
        """Limit the link in both directions, to `200mbit` for example (see tc(8))."""
        self.run(["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, *BURST])
        self._at_switch("tc", "qdisc", "replace", "dev", self._port, "root", "tbf", "rate", rate, *BURST)

    def unlimit(self) -> None:
        self.run(["tc", "qdisc", "delete", "dev", "eth0", "root"], check=False)
        self._at_switch("tc", "qdisc", "delete", "dev", self._port, "root", check=False)

    def bytes_sent(self) -> int:
        """By its interface, since the lab began."""
        return self._counter("tx_bytes")

    def bytes_received(self) -> int:
        return self._counter("rx_bytes")

    def _counter(self, name: str) -> int:
        return int(self.path(f"/sys/class/net/eth0/statistics/{name}").read_text())

    def _at_switch(self, *command: str, check: bool = True) -> None:
        at_switch(self._switch, *command, check=check)

    # ------------------------------------------------------------------------------------------------------- Ray

    def ray_options(self, is_head: bool) -> list[str]:
        return []

    def stop_ray(self) -> None:
        self.run([sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"])


class Lab(Hosts[LabHost]):
    """Hosts on this machine, each with an address, a disk in memory and a process table of its own."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        cores: Mapping[str, Sequence[int]] | None = None,
        token: str | None = None,
        keep: Iterable[Path] = (),
    ) -> None:
        """`cores`: by host, the cores its commands may use; all, if it is not named. `keep`: folders that hosts see
        even if they lie below `/tmp`, as they always see checkout, interpreter and venv."""
        super().__init__(check_names(names), token)
        self._cores = cores or {}
        self._keep = [str(path.resolve()) for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix), *keep)]

    def _build(self, open: ExitStack) -> Iterator[LabHost]:
        if reason := why_no_lab():
            raise LabError(reason)
        mine = os.getpid()
        switch = _hold(open, SWITCH_FLAGS, switch_script(), f"{mine}-switch")
        environment = host_environment(os.environ, self.token, HOME)
        addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(self.names, 1)}
        for number, (name, address) in enumerate(addresses.items(), 1):
            script = host_script(name, addresses, current_mounts(), self._keep)
            inside = _hold(open, HOST_FLAGS, script, f"{mine}-{name}")
            port = f"port{number}"
            for command in link_commands(port, address, inside.pid):
                at_switch(switch, *command)
            yield LabHost(name, address, environment, inside, switch, port, self._cores.get(name, ()))


def _hold(open: ExitStack, flags: Sequence[str], script: str, name: str) -> Holder:
    holder = Holder(flags, script, name)
    open.callback(holder.close)
    return holder


def why_no_lab() -> str | None:
    """Why this process cannot build a `Lab`, in a sentence; None if it can."""
    if os.geteuid() != 0:
        return "the lab makes network and mount namespaces, which only root may do: run it as root (`sudo`)"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"the lab needs {', '.join(missing)}: install iproute2 and util-linux"
    tried = subprocess.run(["unshare", *HOST_FLAGS, "true"], capture_output=True, text=True)
    if tried.returncode:
        return (
            f"this machine refuses namespaces even to root ({tried.stderr.strip()}): `LoopbackLab` starts several Ray "
            "nodes without them"
        )
    return None


def check_names(names: Sequence[str]) -> Sequence[str]:
    if len(set(names)) != len(names) or not 0 < len(names) <= MOST_HOSTS:
        raise LabError(f"a lab has 1 to {MOST_HOSTS} hosts, each with a name of its own, not {list(names)}")
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", name):
            raise LabError(f"{name!r} is no name of a host: use lower-case letters, digits and dashes, as in `h20`")
    return names


def link_commands(port: str, address: str, inside: int) -> list[list[str]]:
    """Run at the switch: a cable from a port of the bridge to `eth0` of a host."""
    at_host = ["nsenter", "--target", str(inside), "--net", "ip"]
    return [
        ["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(inside)],
        ["ip", "link", "set", port, "master", "bridge", "up"],
        [*at_host, "address", "add", f"{address}/24", "dev", "eth0"],
        [*at_host, "link", "set", "eth0", "up"],
    ]


def enter(pid: int) -> list[str]:
    """The beginning of a command line that runs inside a host."""
    return ["nsenter", "--target", str(pid), "--net", "--mount", "--pid", "--ipc", "--uts", "--wd", "--"]


def at_switch(switch: Holder, *command: str, check: bool = True) -> None:
    there = ["nsenter", "--target", str(switch.pid), "--net", *command]
    done = subprocess.run(there, capture_output=True, text=True)
    if check and done.returncode:
        raise LabError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
