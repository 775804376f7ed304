"""`rollweave status RUN`: what a run is doing, who waits for whom, and where the last minute went."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

REFRESH_SECONDS = 1.0


def status(
    run: Annotated[Path, typer.Argument(help="The run folder; running, ended or dead.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it until the run ends.")] = False,
) -> None:
    """Show what a run is doing now: its state, who waits for whom and since when, where the last 60 s went."""
    from rollweave.observability.jsonl import encode
    from rollweave.observability.status import read_status

    if as_json:
        typer.echo(encode(read_status(run).as_json()))
    elif watch:
        _follow(run)
    else:
        from rich.console import Console

        from rollweave.observability.status_screen import status_screen

        Console().print(status_screen(read_status(run)))


def _follow(run: Path) -> None:
    from rich.live import Live

    from rollweave.observability.status import read_status
    from rollweave.observability.status_screen import status_screen

    try:
        with Live(status_screen(read_status(run)), auto_refresh=False) as live:
            while (now := read_status(run)).state in ("running", "new"):
                live.update(status_screen(now), refresh=True)
                time.sleep(REFRESH_SECONDS)
            live.update(status_screen(now), refresh=True)
    except KeyboardInterrupt:
        pass
