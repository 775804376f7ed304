"""`rollweave plan FILE [--json] [-o CLUSTER.yaml]`: which devices, how split, at what cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan file: model, tasks, offers or a budget.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Keys to change, e.g. budget=300.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the best candidate's cluster file here.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Candidates to show.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search device mix, train/rollout split, tensor parallelism, staleness bound (alpha) and redundancy for a job."""
    import json

    from rollweave.config.load import load_file
    from rollweave.config.planning import PlanConfig
    from rollweave.simulation.planner.search import plan as search
    from rollweave.simulation.planner.words import as_data, table, why, write_cluster

    config = load_file(file, PlanConfig, overrides or ())
    result = search(config)
    if as_json:
        typer.echo(json.dumps(as_data(config, result, top)))
    else:
        typer.echo(table(result, top))
        typer.echo("\nWhy the first:")
        for sentence in why(config, result):
            typer.echo(f"  {sentence}")
        typer.echo(f"\n{result.considered:,} candidates estimated, {len(result.choices)} simulated.")
    if output is not None:
        written = write_cluster(config, result.choices[0], output)
        typer.echo(f"cluster: {written}", err=as_json)
