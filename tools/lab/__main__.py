"""`python -m tools.lab demo|up`: a lab of several hosts on this machine (docs/lab.md)."""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from typing import IO

from rollweave.errors import RollweaveError
from tools.lab import Hosts, Lab, LabHost, LoopbackLab, RayHost

LIMIT = "200mbit"
CUT_SECONDS = 3.0


def main() -> int:
    arguments = _arguments()
    names = arguments.hosts.split(",")
    try:
        with LoopbackLab(names) if arguments.loopback else Lab(names) as lab:
            print(f"{len(names)} hosts: {', '.join(f'{host.name} {host.address}' for host in lab)}", flush=True)
            start_cluster(lab, arguments.limit)
            (demo if arguments.command == "demo" else stay_up)(list(lab))
    except RollweaveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    print("everything is taken down")
    return 0


def start_cluster(lab: Hosts[RayHost], limit: str) -> None:
    """A Ray node on each host, labelled with its name; the links of all hosts but the first are limited."""
    head, *others = lab
    started = time.monotonic()
    head.start_ray(labels={"pool": head.name})
    for host in others:
        host.start_ray(head, labels={"pool": host.name})
        if isinstance(host, LabHost):
            host.limit(limit)
            print(f"the link of {host.name} is limited to {limit}")
    print(f"Ray is up after {time.monotonic() - started:.1f} s", flush=True)


def demo(hosts: list[RayHost]) -> None:
    """Run the inner part on the head, show what it says, and cut and heal the link of the last host meanwhile."""
    head, last = hosts[0], hosts[-1]
    command = [sys.executable, "-m", "tools.lab.inside", head.ray_address, *(host.name for host in hosts)]
    before = last.bytes_sent() if isinstance(last, LabHost) else 0
    with subprocess.Popen(
        head.command(command),
        env=head.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as inside:
        assert inside.stdin is not None and inside.stdout is not None
        for line in inside.stdout:
            if line.strip() == "now":
                _cut_and_heal(last, inside.stdin)
            else:
                print(line, end="", flush=True)
    if inside.returncode:
        raise RollweaveError(f"the inner part of the demo ended with code {inside.returncode}")
    if isinstance(last, LabHost):
        print(f"{last.name} sent {(last.bytes_sent() - before) / 2**20:.0f} MB over its interface")


def _cut_and_heal(last: RayHost, go: IO[str]) -> None:
    """The next call of the inner part begins when it reads a line."""
    if isinstance(last, LabHost):
        last.cut()
        print(f"the link of {last.name} is cut for {CUT_SECONDS:g} s", flush=True)
    go.write("go\n")
    go.flush()
    if isinstance(last, LabHost):
        time.sleep(CUT_SECONDS)
        last.heal()


def stay_up(hosts: list[RayHost]) -> None:
    """Say how to get inside, until Ctrl-C."""
    for host in hosts:
        print(f"{host.name}: {shlex.join(host.command(['bash']))}")
    print(f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN={hosts[0].environment['RAY_AUTH_TOKEN']} HOME=...")
    print(f"Ray: {hosts[0].ray_address}; Ctrl-C takes everything down", flush=True)
    signal.pause()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.lab", description=__doc__)
    parser.add_argument("command", choices=["demo", "up"], help="measure calls, pulls and a cut link; or stay up")
    parser.add_argument("--hosts", default="head,h20", help="names, separated by commas; the first is the head")
    parser.add_argument("--limit", default=LIMIT, help="of the links of all hosts but the first, as in tc(8)")
    parser.add_argument("--loopback", action="store_true", help="several Ray nodes without namespaces: no links")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
