"""`rollweave reward serve`: reward functions behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Serve reward functions to runs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass  # so that `serve` stays a command of its own


@app.command()
def serve(
    functions: Annotated[list[str], typer.Argument(metavar="FILE.py:FUNCTION...", help="The functions to serve.")],
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0: for other machines too.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where to listen.")] = 8080,
    maximum: Annotated[int, typer.Option(min=1, help="Processes at most.")] = 4,
    minimum: Annotated[int, typer.Option(min=0, help="Processes that stay without calls.")] = 0,
    idle_seconds: Annotated[float, typer.Option(min=0.0, help="A process without a call for so long ends.")] = 60.0,
    memory_gb: Annotated[float, typer.Option(min=0.1, help="Memory of a process.")] = 2.0,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds of one call; then its process is killed.")] = 30.0,
    max_request_mb: Annotated[float, typer.Option(min=0.001, help="A larger request is refused.")] = 8.0,
    token: Annotated[
        str | None, typer.Option(metavar="env:NAME|file:PATH", help="Where the token is that requests need.")
    ] = None,
) -> None:
    """Serve reward functions over HTTP, computed by one elastic pool of processes that any number of runs share."""
    from rollweave.config.rewards import InstancesConfig
    from rollweave.config.secrets import check_secret, read_secret
    from rollweave.rewards.server import ServeOptions
    from rollweave.rewards.server import serve as serve_rewards

    named = check_secret(token, "--token") if token is not None else None
    instances = InstancesConfig(
        minimum=minimum, maximum=max(maximum, minimum), idle_seconds=idle_seconds, memory_gb=memory_gb
    )
    secret = read_secret(named, "--token")
    serve_rewards(ServeOptions(functions, Path.cwd(), instances, timeout, secret, max_request_mb), host, port)
