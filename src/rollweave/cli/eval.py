"""`rollweave eval RUN|MODEL` plays held-out tasks with a trained policy, or with a model behind a server."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rollweave.cli.options import AsJson, Overrides


def evaluate(
    target: Annotated[
        str | None, typer.Argument(metavar="RUN|MODEL", help="A run folder, a model folder or a model of the hub.")
    ] = None,
    overrides: Overrides = None,
    env: Annotated[str | None, typer.Option(metavar="NAME", help="Environment type; default: the run's own.")] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks to play.")] = 100,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask a server with OpenAI's chat interface instead.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name on that server.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play held-out tasks greedily and report the reward."""
    from rollweave.errors import ConfigError
    from rollweave.runs.evaluate import evaluate as play
    from rollweave.runs.evaluate import evaluate_server

    chosen = [f"environment.type={env}"] if env else []
    given = [*chosen, *(overrides or ())]
    if server is not None:
        # What is no option may only be an override here: the model has a flag of its own.
        if model is None:
            raise ConfigError(f"--server {server} wants --model NAME too: the name that the server gives the model")
        result = evaluate_server(server, model, [*([target] if target else []), *given], tasks)
    elif target is None:
        raise ConfigError("say what to evaluate: a run folder, a model, or --server URL --model NAME")
    else:
        result = play(target, given, tasks)
    if as_json:
        typer.echo(json.dumps(result))
        return
    width = max(map(len, result), default=0)
    for name, value in result.items():
        typer.echo(f"{name:<{width}}  {value:.4g}" if isinstance(value, float) else f"{name:<{width}}  {value}")
