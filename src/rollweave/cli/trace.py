"""`rollweave trace RUN -o FILE`: a run's events as a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def trace(
    run: Annotated[Path, typer.Argument(help="The run folder; it may still be running.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it; default: RUN/trace.json.")
    ] = None,
) -> None:
    """Write a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open."""
    from rollweave.observability.events import read_events
    from rollweave.observability.timeline import Timeline
    from rollweave.runs.folder import RunFolder

    folder = RunFolder.open(run)
    timeline = Timeline()
    for event in read_events(folder.events):
        timeline(event)
    written = output or folder.path / "trace.json"
    timeline.write(written)
    typer.echo(f"trace: {written} ({len(timeline.slices)} slices; open it at ui.perfetto.dev)")
