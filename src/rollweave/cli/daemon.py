"""`rollweave daemon start|status|stop`: the daemon that runs many jobs on two pools."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollweave.cli.options import AsJson
from rollweave.errors import RollweaveError

if TYPE_CHECKING:
    from rollweave.mux.daemon.client import Client
    from rollweave.mux.daemon.store import StateFolder

app = typer.Typer(help="Run many jobs on two pools: the daemon.", no_args_is_help=True)

StateFolderOption = Annotated[
    Path | None, typer.Option("--state", help="The daemon's folder; default: ROLLWEAVE_STATE or ~/.rollweave/daemon.")
]

PATIENCE_SECONDS = 30.0


def find_daemon(state: Path | None) -> Client:
    from rollweave.mux.daemon.client import Client
    from rollweave.mux.daemon.store import StateFolder

    return Client(StateFolder.choose(state))


def show(found: Any, as_json: bool, screen: Callable[[Any], str]) -> None:
    """Print an answer of the daemon, as JSON or as text."""
    typer.echo(json.dumps(found) if as_json else screen(found))


@app.command()
def start(
    state: StateFolderOption = None,
    host: Annotated[str, typer.Option(help="Where to listen; every request still needs the token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 0,
    rollout_nodes: Annotated[int, typer.Option(min=1, help="Cores of the rollout pool.")] = 1,
    train_nodes: Annotated[int, typer.Option(min=1, help="Cores of the train pool.")] = 1,
    policy: Annotated[str, typer.Option(help="The scheduler: default, rollmux or per-iteration.")] = "default",
    foreground: Annotated[
        bool, typer.Option("--foreground/--detach", help="Stay, or go on in the background.")
    ] = False,
) -> None:
    """Start the daemon. Jobs that ran when it was stopped or killed go on."""
    from rollweave.mux.daemon.store import StateFolder

    folder = StateFolder.choose(state)
    if not foreground:
        options = ["--host", host, "--port", str(port), "--policy", policy]
        nodes = ["--rollout-nodes", str(rollout_nodes), "--train-nodes", str(train_nodes)]
        _detach(folder, [*options, *nodes])
        return
    from rollweave.mux.daemon.daemon import run_daemon
    from rollweave.mux.model.policy import policy as policy_named

    run_daemon(folder, host, port, rollout_nodes, train_nodes, policy_named(policy))


@app.command()
def status(state: StateFolderOption = None, as_json: AsJson = False) -> None:
    """Show the nodes: which jobs hold them and which wait for them."""
    from rollweave.mux.daemon.views import daemon_screen

    show(find_daemon(state).get("/daemon"), as_json, daemon_screen)


@app.command()
def stop(
    state: StateFolderOption = None,
    leave_jobs: Annotated[
        bool, typer.Option("--leave-jobs", help="End the daemon only; its jobs wait for the next.")
    ] = False,
) -> None:
    """End the daemon. Its jobs save a checkpoint and end too; the next `daemon start` goes on with them."""
    daemon = find_daemon(state)
    daemon.post(f"/daemon/stop?leave_jobs={str(leave_jobs).lower()}")
    _wait_until_gone(daemon.folder)
    typer.echo("the daemon has ended, " + ("its jobs wait for the next one" if leave_jobs else "and its jobs with it"))


def _detach(folder: StateFolder, options: list[str]) -> None:
    from rollweave.mux.daemon.client import Client, DaemonError
    from rollweave.runtimes.machine import only_one

    with only_one(folder.path):  # fails here, not in a log, if there is a daemon already
        pass
    command = [sys.executable, "-m", "rollweave.cli.main", "daemon", "start", "--foreground", *options]
    with folder.log.open("ab") as log:
        log.write(b"\n")
        began = log.tell()
        daemon = subprocess.Popen(
            [*command, "--state", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + PATIENCE_SECONDS
    while daemon.poll() is None and time.monotonic() < until:
        if (found := _answer(Client(folder), daemon.pid)) is not None:
            typer.echo(f"the daemon runs (process {daemon.pid}) at {folder.address()['url']}, state in {folder.path}")
            for sentence in found["set_aside"]:
                typer.echo(sentence)
            typer.echo("next: rollweave submit JOB.yaml --slo 1.5")
            return
        time.sleep(0.05)
    daemon.kill()  # one that is only slow must not appear after the command has said that it did not start
    with folder.log.open("rb") as log:
        log.seek(began)
        words = log.read().decode(errors="replace").strip()
    raise DaemonError(f"the daemon did not start; it said: {words or '(nothing)'}")


def _answer(client: Client, pid: int) -> dict[str, Any] | None:
    """The answer of the daemon with this process number, once it answers."""
    try:
        found: dict[str, Any] = client.get("/daemon")
        return found if client.folder.address()["pid"] == pid else None
    except RollweaveError:
        return None


def _wait_until_gone(folder: StateFolder) -> None:
    from rollweave.runtimes.machine import DaemonRunning, only_one

    while True:
        try:
            with only_one(folder.path):
                return
        except DaemonRunning:
            time.sleep(0.1)
