"""`rollweave replay RUN`: do the recorded decisions come out again?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    run: Annotated[Path, typer.Argument(help="The run folder; it may still be running.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a recorded run's control plane again, on the virtual clock, and compare every decision.

    Ends with code 1 at the first decision that comes out differently, and shows what led to it.
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
