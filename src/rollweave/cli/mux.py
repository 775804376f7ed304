"""`rollweave mux simulate|trace`: simulates many jobs on two pools. `rollweave daemon` runs them for real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollweave.cli.options import AsJson, Seed

app = typer.Typer(help="Multiplex many jobs on two pools, in simulation.", no_args_is_help=True)


@app.command()
def simulate(
    trace: Annotated[Path, typer.Option(help="CSV: submit_s,duration_s,gpus[,source_job_id].")],
    policy: Annotated[
        str, typer.Option(help="rollmux, default, per-iteration; or solo-d, colocated, gavel+, opt ...")
    ] = "default",
    jobs: Annotated[str, typer.Option(help="Class of the jobs: bl, rh, th or mixed.")] = "mixed",
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Replay with this many seeds, from --seed on, and average.")] = 1,
    sizes: Annotated[str, typer.Option(help="Nodes per pool and job: one, testbed or mixed.")] = "one",
    host_gb: Annotated[
        float, typer.Option(min=0, help="Host memory of a node that jobs have to share; 0: enough.")
    ] = 0,
    failures: Annotated[float, typer.Option(min=0, max=1, help="Share of jobs killed and submitted again.")] = 0.0,
    phases: Annotated[bool, typer.Option("--phases", help="Simulate phase by phase instead of by mean rates.")] = False,
    bound: Annotated[bool, typer.Option("--bound", help="Also print a cost that no policy can go below.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write cost over time as SVG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace of arriving jobs under a policy, and print its cost and how many jobs keep their SLO."""
    import json
    from time import perf_counter

    from rollweave.mux.simulation import report
    from rollweave.mux.simulation import simulate as simulation
    from rollweave.mux.simulation.trace import read_trace

    scenario = simulation.make_scenario(read_trace(trace), jobs, sizes, host_gb, failures, phases)
    what: dict[str, Any] = {"policy": policy, "class": jobs}
    runs = [
        {**what, "seed": number, **report.as_json(simulation.simulate(scenario, policy, number, perf_counter))}
        for number in range(seed, seed + seeds)
    ]
    if bound:
        for run in runs:
            run["lower_bound"] = simulation.bound(scenario, run["seed"])
    summary = runs[0] if seeds == 1 else {**what, **report.over_seeds(runs)}
    if plot is not None:
        costs = {f"seed {run['seed']}": run["cost_over_time"] for run in runs}
        plot.write_text(report.cost_over_time(costs), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(summary))
        return
    of = f"seed {seed}" if seeds == 1 else f"mean of {seeds} seeds"
    typer.echo(f"{policy} on {trace.name}: {len(scenario.trace)} {jobs} jobs, {of}\n{report.as_table(summary)}")


@app.command("trace")
def make_trace(
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs in the trace.")] = 300,
    seed: Seed = 0,
    like: Annotated[
        str, typer.Option(help="primary: 7 jobs at a time; heavy: 24, most of them in one burst.")
    ] = "primary",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; without it, to the terminal.")
    ] = None,
) -> None:
    """Make a trace with the statistics of a recorded one; it contains no recorded job."""
    from rollweave.mux.simulation.trace import describe, generate, write_trace

    made = generate(jobs, seed, like)
    if out is None:
        typer.echo(write_trace(made), nl=False)
        return
    out.write_text(write_trace(made), encoding="utf-8")
    found = describe(made)
    typer.echo(
        f"{out}: {found.jobs} jobs over {found.arrival_span_h:.0f} h, {found.mean_h:.1f} h each on average "
        f"(median {found.median_h:.1f}, longest {found.max_h:.1f}), {found.mean_concurrency:.1f} at a time, "
        f"{found.peak_concurrency} at the peak"
    )
