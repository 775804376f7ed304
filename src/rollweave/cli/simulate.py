"""`rollweave simulate|plan|profile FILE`: commands that answer questions about hardware before a run uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollweave.cli.options import AsJson, Output, Overrides
from rollweave.errors import ConfigError


def simulate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The simulation file (recipes/simulate/mixed_tasks.yaml); with --recorded a job file."
        ),
    ],
    overrides: Overrides = None,
    recorded: Annotated[
        Path | None,
        typer.Option(
            help="The folder of a run of the job in FILE: its episodes' lengths are played on other hardware."
        ),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="With --recorded: the cluster file, if not the one that the job names.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --recorded: the model to simulate, for example qwen3-8b.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Replaces the seed of the file.")] = None,
    as_json: AsJson = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open.")
    ] = None,
) -> None:
    """Run a job on hardware you do not have: step time, throughput, idle devices and cost, in simulated time."""
    from rollweave.config.cluster import ClusterConfig
    from rollweave.config.load import load_file, load_job
    from rollweave.config.scenario import Scenario
    from rollweave.observability.timeline import Timeline
    from rollweave.simulation.of_job import job_scenario, simulate_job
    from rollweave.simulation.outcome import table
    from rollweave.simulation.simulate import simulate as run

    changes = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
    timeline = Timeline()
    sinks = [timeline] if trace else []
    if recorded is None:
        if cluster or model:
            raise ConfigError("--cluster and --model belong to --recorded; in a simulation file say cluster=… model=…")
        scenario = load_file(file, Scenario, changes)
        outcome = run(scenario, sinks, every_turn=bool(trace))
    else:
        job = load_job(file, changes)
        scenario = job_scenario(job, recorded, load_file(cluster, ClusterConfig) if cluster else None, model)
        outcome = simulate_job(job, scenario, sinks, every_turn=bool(trace))
    if trace is not None:
        timeline.write(trace)
    typer.echo(outcome.json(rows=True) if as_json else table(scenario, outcome))


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan file: model, tasks, offers or a budget.")],
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the best candidate's cluster file here.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Candidates to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Search device mix, train/rollout split, tensor parallelism, staleness bound (alpha) and redundancy for a job."""
    import json

    from rollweave.config.load import load_file
    from rollweave.config.planning import PlanConfig
    from rollweave.simulation.planner.search import plan as search
    from rollweave.simulation.planner.words import as_data, closing, table, why, write_cluster

    config = load_file(file, PlanConfig, overrides or ())
    result = search(config, progress=lambda words: typer.echo(words, err=True))
    if as_json:
        typer.echo(json.dumps(as_data(config, result, top)))
    else:
        typer.echo(table(result, top))
        typer.echo("\nWhy the first:")
        for sentence in why(config, result):
            typer.echo(f"  {sentence}")
        typer.echo(f"\n{closing(result)}")
    if output is not None:
        written = write_cluster(config, result.choices[0], output)
        typer.echo(f"cluster: {written}", err=as_json)


def profile(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    overrides: Overrides = None,
    output: Output = None,
    steps: Annotated[int, typer.Option(min=1, help="Train steps of each of the two real samples.")] = 6,
) -> None:
    """Measure the engine, trainer, environment, reward and hosts of a job on this machine.

    The commands simulate, plan and report read the result (<job name>.profile.yaml). Measuring takes a minute or two;
    nothing else should run on the machine meanwhile.
    """
    from rollweave.config.load import load_job
    from rollweave.profiling.profile import measure, write_profile
    from rollweave.runs.train import check_before_start
    from rollweave.simulation.calibration import calibrate, summary

    checked = load_job(job, overrides or ())
    check_before_start(checked)
    measurements = measure(checked, lambda what: typer.echo(f"... {what}", err=True), steps)
    typer.echo("... estimating what hosts and shared cores cost", err=True)
    calibrated = calibrate(measurements.scenario, measurements.alternating, measurements.overlapped)
    written = write_profile(calibrated, output or Path(f"{checked.name}.profile.yaml"))
    typer.echo(summary(calibrated))
    typer.echo(f"profile: {written}")
