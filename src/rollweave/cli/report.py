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
    profile: Annotated[
        Path | None, typer.Option(help="A file of `rollweave profile`: also show what the run should have taken by it.")
    ] = None,
) -> None:
    """Write one self-contained HTML page: learning curve, time per phase, staleness, ledger, transcripts."""
    from rollweave.observability.report import write_report

    if profile is not None:
        from rollweave.observability.report_prediction import write_prediction
        from rollweave.profiling.entry import load_profile
        from rollweave.runs.folder import RunFolder
        from rollweave.simulation.prediction import predict

        write_prediction(run, predict(RunFolder.open(run).job(), load_profile(profile)).metrics())
    written = write_report(run, output or run / "report.html")
    typer.echo(f"report: {written}")
