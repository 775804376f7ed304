"""`rollweave train JOB.yaml [key.sub=value ...]`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollweave.cli.options import Overrides

if TYPE_CHECKING:
    from rollweave.config.job import Job


def train(
    job: Annotated[
        Path, typer.Argument(metavar="JOB.yaml", help="The job file; with --resume, the folder of the run will do.")
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; it must not hold a run yet. Default: a new one in runs/.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in RUN (given instead of JOB.yaml) or in --out, from its newest whole checkpoint.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the job and print it with all its defaults; write it if --out.")
    ] = False,
) -> None:
    """Train a job, or go on with a run: train --resume RUN."""
    from rollweave.config.load import load_job

    if resume and job.is_dir():
        from rollweave.runs.folder import RunFolder

        out = job
        job = RunFolder.open(job).config
    checked = load_job(job, overrides or ())
    if dry_run:
        from rollweave.runs.train import check_before_start

        check_before_start(checked)
        _show(checked, None if resume else out)
        return
    permits = None
    if "ROLLWEAVE_DAEMON_FOLDER" in os.environ:  # the daemon started this process
        from rollweave.mux.daemon.permit_client import join_daemon

        permits = join_daemon()  # before anything is touched: a process that was replaced goes no further
    from rollweave.runs.train import train_job

    train_job(checked, out, resume, permits=permits)


def _show(job: Job, out: Path | None) -> None:
    """The resolved file goes to standard output or into the folder; what it would do, to standard error."""
    from rollweave.config.load import dump_job, outline, save_resolved

    typer.echo(save_resolved(job, out) if out else dump_job(job), nl=out is not None)
    typer.echo(outline(job), err=True)
