"""`rollweave env list|check|play`: lists the environments, checks one, or lets you play it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollweave.cli.options import AsJson, Seed

if TYPE_CHECKING:
    from rollweave.environments.check import CheckReport

app = typer.Typer(help="List, check and play environments.", no_args_is_help=True)

EnvName = Annotated[str, typer.Argument(help="A shipped environment's name, or file.py:Class.")]
Options = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of the environment.")]


@app.command("list")
def list_environments(as_json: AsJson = False) -> None:
    """List the environments that come with Rollweave, and their options."""
    from rollweave.environments.catalogue import catalogue

    entries = catalogue()
    if as_json:
        print(json.dumps(entries))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    for entry in entries:
        table = Table(
            "option", "default", "meaning", title=f"[bold]{entry['name']}[/]: {entry['about']}", box=box.SIMPLE
        )
        table.title_justify = "left"
        for option in entry["options"]:
            table.add_row(option["name"], option["default"], option["about"])
        Console().print(table)


@app.command()
def check(
    target: EnvName,
    options: Options = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each player.")] = 20,
    max_turns: Annotated[int, typer.Option(min=1, help="An episode with more turns counts as endless.")] = 200,
    deadline: Annotated[float, typer.Option(min=0.01, help="Seconds a reset or step may take.")] = 30.0,
    reward: Annotated[list[str] | None, typer.Option(help="Also score with file.py:function; may be repeated.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Play random and scripted episodes; exit 1 if the environment is broken or there is nothing to learn."""
    from rollweave.environments.catalogue import check_target

    limits = {"episodes": episodes, "max_turns": max_turns, "deadline": deadline}
    report = asyncio.run(check_target(target, options or [], Path.cwd(), reward or [], seed=seed, **limits))
    _print_report(report, target, as_json)
    if report.problems:
        raise typer.Exit(1)


@app.command()
def play(
    target: EnvName,
    options: Options = None,
    seed: Seed = 0,
    scripted: Annotated[bool, typer.Option("--scripted", help="Random legal actions instead of asking.")] = False,
    max_turns: Annotated[int, typer.Option(min=1)] = 100,
) -> None:
    """Play an episode yourself in the terminal, or watch a scripted one."""
    from rollweave.environments.catalogue import play_target

    ask = None if scripted else lambda: str(typer.prompt(">", prompt_suffix=" ", default="", show_default=False))
    asyncio.run(play_target(target, options or [], Path.cwd(), seed, max_turns, ask, typer.echo))


def _print_report(report: CheckReport, target: str, as_json: bool) -> None:
    from rollweave.environments.check import in_words, summarise

    summary = summarise(report)
    if as_json:
        print(json.dumps({"environment": target, **summary, "problems": report.problems, "notes": report.notes}))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    players = summary["players"]
    table = Table(target, *players)
    for row in next(iter(players.values()), {}):
        table.add_row(row, *(in_words(figures[row]) for figures in players.values()))
    if players:
        console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", markup=False)
    for problem in report.problems:
        console.print(f"refused: {problem}", markup=False, style="red")
    if not report.problems:
        console.print("ok: episodes end, rewards differ", style="green")
