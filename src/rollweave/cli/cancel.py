"""`rollweave cancel ID`"""

from __future__ import annotations

from typing import Annotated

import typer

from rollweave.cli.cluster import State


def cancel(
    job: Annotated[str, typer.Argument(metavar="ID", help="As `rollweave jobs` names it.")],
    state: State = None,
) -> None:
    """End a job of the cluster. Its run folder stays; `submit --resume ID` goes on with it."""
    from rollweave.mux.daemon.client import Client
    from rollweave.mux.daemon.files import StateFolder

    found = Client(StateFolder.choose(state)).post(f"/jobs/{job}/cancel")
    typer.echo(f"{found['id']} is cancelled at step {found['step']} of {found['steps']}")
