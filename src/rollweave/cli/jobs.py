"""`rollweave submit|jobs|cancel`: the commands about the jobs of a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollweave.cli.daemon import StateFolderOption, find_daemon, show
from rollweave.cli.options import AsJson, Overrides
from rollweave.errors import ConfigError


def submit(
    job: Annotated[Path | None, typer.Argument(metavar="JOB.yaml", help="The job file.")] = None,
    overrides: Overrides = None,
    slo: Annotated[
        float, typer.Option(help="Tolerated slow-down: 1.5 means an iteration may take half as long again.")
    ] = 1.5,
    rollout_nodes: Annotated[
        int | None, typer.Option(min=1, help="Rollout nodes it runs on at once; default: one per engine.")
    ] = None,
    train_nodes: Annotated[int, typer.Option(min=1, help="Train nodes it runs on at once.")] = 1,
    resume: Annotated[str, typer.Option(metavar="ID", help="Go on with a failed or cancelled job instead.")] = "",
    state: StateFolderOption = None,
    as_json: AsJson = False,
) -> None:
    """Hand a job to the daemon: it measures the job, places it where no promise breaks and runs it among others."""
    daemon = find_daemon(state)
    if resume:
        found = daemon.post(f"/jobs/{resume}/resume")
    elif job is None:
        raise ConfigError("name a job file: rollweave submit JOB.yaml --slo 1.5, or go on with one: --resume ID")
    else:
        from rollweave.mux.daemon.client import submission

        found = daemon.post("/jobs", submission(job, overrides or (), slo, rollout_nodes, train_nodes))
    job_id, begins = found["id"], found["state"]
    show(found, as_json, lambda _: f"{job_id} is submitted ({begins}); look with: rollweave jobs --explain {job_id}")


def jobs(
    explain: Annotated[
        str, typer.Option(metavar="ID", help="Why this job is where it is, and what happened to it.")
    ] = "",
    state: StateFolderOption = None,
    as_json: AsJson = False,
) -> None:
    """List the daemon's jobs: what they do, how far they are, how much slower than alone."""
    from rollweave.mux.daemon.views import explain_screen, jobs_screen

    found = find_daemon(state).get(f"/jobs/{explain}" if explain else "/jobs")
    show(found, as_json, explain_screen if explain else jobs_screen)


def cancel(
    job: Annotated[str, typer.Argument(metavar="ID", help="As `rollweave jobs` names it.")],
    state: StateFolderOption = None,
) -> None:
    """End a job of the daemon. Its run folder stays; `submit --resume ID` goes on with it."""
    found = find_daemon(state).post(f"/jobs/{job}/cancel")
    typer.echo(f"{found['id']} is cancelled at step {found['step']} of {found['steps']}")
