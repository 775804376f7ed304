"""`rollweave jobs [--explain ID]`"""

from __future__ import annotations

from typing import Annotated

import typer

from rollweave.cli.cluster import AsJson, State


def jobs(
    explain: Annotated[
        str, typer.Option(metavar="ID", help="Why this job is where it is, and what happened to it.")
    ] = "",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List the cluster's jobs: what they do, how far they are, how much slower than alone."""
    from rollweave.mux.daemon.client import Client
    from rollweave.mux.daemon.files import StateFolder

    client = Client(StateFolder.choose(state))
    found = client.get(f"/jobs/{explain}" if explain else "/jobs")
    if as_json:
        import json

        typer.echo(json.dumps(found))
        return
    from rollweave.mux.daemon.screens import explain_screen, jobs_screen

    typer.echo(explain_screen(found) if explain else jobs_screen(found))
