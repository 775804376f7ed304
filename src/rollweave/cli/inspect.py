"""`rollweave status|replay|trace|report RUN`: commands that look at a run folder."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from rollweave.cli.options import AsJson, Output, RunFolderArgument

REFRESH_SECONDS = 1.0


def status(
    run: RunFolderArgument,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update it until the run ends.")] = False,
) -> None:
    """Show what a run is doing now: its state, what waits for what and since when, where the last 60 s went."""
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

    with suppress(KeyboardInterrupt), Live(status_screen(read_status(run)), auto_refresh=False) as live:
        while (now := read_status(run)).state in ("running", "new"):
            live.update(status_screen(now), refresh=True)
            time.sleep(REFRESH_SECONDS)
        live.update(status_screen(now), refresh=True)


def replay(run: RunFolderArgument, as_json: AsJson = False) -> None:
    """Run a recorded run's control plane again, on the virtual clock, and compare every decision.

    The command stops at the first decision that differs, shows what led to it, and ends with code 1.
    """
    import json
    from dataclasses import asdict

    from rollweave.environments.registry import source
    from rollweave.observability.events import read_events
    from rollweave.runs.folder import RunFolder
    from rollweave.simulation.recorded.replay import replay as replay_events

    folder = RunFolder.open(run)
    job = folder.job()
    result = replay_events(job, source(job.environment, job.seed, Path()), read_events(folder.events))
    if as_json:
        typer.echo(json.dumps(asdict(result), default=str))
    elif result.difference is not None:
        typer.echo(str(result.difference))
    else:
        stretches = "" if result.stretches == 1 else f", {result.stretches} stretches"
        typer.echo(f"{result.decisions} decisions, all the same ({result.steps} steps{stretches})")
    if result.difference is not None:
        raise typer.Exit(1)


def trace(run: RunFolderArgument, output: Output = None) -> None:
    """Write a timeline (RUN/trace.json) that Perfetto (ui.perfetto.dev) and chrome://tracing open."""
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


def report(
    run: RunFolderArgument,
    output: Output = None,
    profile: Annotated[
        Path | None, typer.Option(help="A file of `rollweave profile`: also show the times it predicts.")
    ] = None,
) -> None:
    """Write one HTML page (RUN/report.html): learning curve, time per phase, staleness, ledger, transcripts."""
    from rollweave.observability.report.page import write_report

    if profile is not None:
        from rollweave.observability.report.sections import write_prediction
        from rollweave.profiling.profile import load_profile
        from rollweave.runs.folder import RunFolder
        from rollweave.simulation.prediction import predict

        write_prediction(run, predict(RunFolder.open(run).job(), load_profile(profile)).metrics())
    written = write_report(run, output or run / "report.html")
    typer.echo(f"report: {written}")
