"""`rollweave simulate FILE`: the job's control plane on modelled hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The simulation file, for example recipes/simulate/mixed_tasks.yaml.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Keys to change, as in the file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the file's: other tasks, lengths and failures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with a row per step.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open.")
    ] = None,
) -> None:
    """Run a job on hardware you do not have: step time, throughput, idle devices and cost, in simulated time."""
    from rollweave.config.scenario import load_scenario
    from rollweave.observability.timeline import Timeline
    from rollweave.simulation.simulate import simulate as run
    from rollweave.simulation.table import table

    changes = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
    scenario = load_scenario(file, changes)
    timeline = Timeline()
    outcome = run(scenario, [timeline] if trace else [], every_turn=trace is not None)
    if trace is not None:
        timeline.write(trace)
    typer.echo(outcome.json(rows=True) if as_json else table(scenario, outcome))
