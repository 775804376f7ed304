"""`rollweave submit JOB.yaml --slo 1.5`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollweave.cli.cluster import AsJson, State


def submit(
    job: Annotated[Path | None, typer.Argument(metavar="JOB.yaml", help="The job file.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Keys to change.")] = None,
    slo: Annotated[
        float, typer.Option(help="Tolerated slow-down: 1.5 means an iteration may take half as long again.")
    ] = 1.5,
    rollout_nodes: Annotated[
        int | None, typer.Option(min=1, help="Rollout nodes it runs on at once; default: one per engine.")
    ] = None,
    train_nodes: Annotated[int, typer.Option(min=1, help="Train nodes it runs on at once.")] = 1,
    resume: Annotated[str, typer.Option(metavar="ID", help="Go on with a failed or cancelled job instead.")] = "",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Hand a job to the cluster. It is measured, placed where no promise breaks, and run in turns with others."""
    from rollweave.errors import ConfigError
    from rollweave.mux.daemon.client import Client
    from rollweave.mux.daemon.files import StateFolder

    client = Client(StateFolder.choose(state))
    if resume:
        found = client.post(f"/jobs/{resume}/resume")
    elif job is None:
        raise ConfigError("name a job file: rollweave submit JOB.yaml --slo 1.5, or go on with one: --resume ID")
    else:
        from rollweave.mux.daemon.submission import submission

        found = client.post("/jobs", submission(job, overrides or (), slo, rollout_nodes, train_nodes))
    if as_json:
        import json

        typer.echo(json.dumps(found))
    else:
        typer.echo(f"{found['id']} is submitted ({found['state']}); look with: rollweave jobs --explain {found['id']}")
