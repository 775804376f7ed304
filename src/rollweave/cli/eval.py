"""`rollweave eval RUN|MODEL` plays held-out tasks with a trained policy."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rollweave.cli.options import AsJson, Overrides


def evaluate(
    target: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="A run folder, a model folder or a model of the hub.")
    ],
    overrides: Overrides = None,
    env: Annotated[str | None, typer.Option(metavar="NAME", help="Environment type; default: the run's own.")] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks to play.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Play held-out tasks greedily and report the reward."""
    from rollweave.runs.evaluate import evaluate as play

    chosen = [f"environment.type={env}"] if env else []
    result = play(target, [*chosen, *(overrides or ())], tasks)
    if as_json:
        typer.echo(json.dumps(result))
        return
    width = max(map(len, result), default=0)
    for name, value in result.items():
        typer.echo(f"{name:<{width}}  {value:.4g}" if isinstance(value, float) else f"{name:<{width}}  {value}")
