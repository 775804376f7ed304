"""`rollweave train JOB.yaml [key.sub=value ...]`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollweave.config.job import Job


def train(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.SUB=VALUE", help="Keys to change, e.g. training.steps=50."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; it must not hold a run yet. Default: a new one in runs/.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the job and print it with all its defaults; write it if --out.")
    ] = False,
) -> None:
    """Train a job."""
    from rollweave.config.load import load_job

    checked = load_job(job, overrides or ())
    if dry_run:
        from rollweave.preflight import check_before_start

        check_before_start(checked)
        _show(checked, out)
    else:
        from rollweave.run import train_job

        train_job(checked, out)


def _show(job: Job, out: Path | None) -> None:
    """The resolved file goes to standard output or into the folder; what it would do, to standard error."""
    from rollweave.config.load import dump_job
    from rollweave.config.plan import outline, save_resolved

    typer.echo(save_resolved(job, out) if out else dump_job(job), nl=out is not None)
    typer.echo(outline(job), err=True)
