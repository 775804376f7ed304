"""`rollweave report RUN -o FILE.html`: one self-contained page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="The run folder; it may still be running.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the page; default: RUN/report.html.")
    ] = None,
) -> None:
    """Write one self-contained HTML page: learning curve, time per phase, staleness, ledger, transcripts."""
    from rollweave.observability.report import write_report

    written = write_report(run, output or run / "report.html")
    typer.echo(f"report: {written}")
