"""`rollweave profile JOB.yaml [-o FILE]`: times a job's real parts, for simulations of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def profile(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Keys of the job to change.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write it; default: <job name>.profile.yaml."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Train steps of each of the two real samples.")] = 6,
) -> None:
    """Time the engine, trainer, environment, reward and hosts of a job here; simulate, plan and report read the result.

    Takes a minute or two and wants the machine for itself.
    """
    from rollweave.config.load import load_job
    from rollweave.profiling.entry import write_profile
    from rollweave.profiling.profile import measure
    from rollweave.runs.preflight import check_before_start
    from rollweave.simulation.calibration import calibrate, summary

    checked = load_job(job, overrides or ())
    check_before_start(checked)
    measurements = measure(checked, lambda what: typer.echo(f"... {what}", err=True), steps)
    typer.echo("... finding what hosts and shared cores cost", err=True)
    calibrated = calibrate(measurements.scenario, measurements.in_turns, measurements.overlapped)
    written = write_profile(calibrated, output or Path(f"{checked.name}.profile.yaml"))
    typer.echo(summary(calibrated))
    typer.echo(f"profile: {written}")
