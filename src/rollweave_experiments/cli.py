"""`rollweave experiments list|run`: simulates the papers' experiments and compares them with what the papers report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollweave.cli.options import AsJson, Seed

if TYPE_CHECKING:
    from rollweave_experiments.verdict import ExperimentResult

app = typer.Typer(help="Reproduce the papers' experiments in simulation.", no_args_is_help=True)


@app.command("list")
def list_experiments(as_json: AsJson = False) -> None:
    """List the experiments, each with its paper, its strongest claim and its number of rows of each kind."""
    from rollweave_experiments.listing import listing, listing_table

    typer.echo(json.dumps(listing(), indent=1) if as_json else listing_table())


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment's name, or `all`.")],
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds in a row; the spread is reported.")] = 1,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write one page with every table and plot.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a folder with the rows as JSON and the plots as SVG.")] = None,
) -> None:
    """Run experiments and print the papers' numbers beside the simulated ones."""
    from rollweave_experiments import save
    from rollweave_experiments.catalogue import chosen, run_all
    from rollweave_experiments.text import score_line, table
    from rollweave_experiments.verdict import scores

    def tell(result: ExperimentResult) -> None:
        if as_json:
            typer.echo(f"... {result.study.name}", err=True)
        else:
            typer.echo(table(result))

    results = run_all(chosen(name), range(seed, seed + seeds), tell)
    if html is not None:
        save.write_page(results, html)
    if out is not None:
        save.write_folder(results, out)
    if as_json:
        typer.echo(json.dumps(save.as_json(results), indent=1))
        return
    for score in scores(results):
        typer.echo(score_line(score))
    for written in (html, out):
        if written is not None:
            typer.echo(f"written: {written}")
