"""`rollweave doctor`"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollweave.doctor import Check

MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "broken": "[red]✗[/]"}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Look at this machine: versions, threads, memory, what works and how to fix what does not."""
    from rollweave.doctor import examine, report

    checks = examine()
    if as_json:
        typer.echo(json.dumps(report(checks), indent=2))
    else:
        _print_table(checks)
    if any(check.status == "broken" for check in checks):
        raise typer.Exit(1)


def _print_table(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1))
    for check in checks:
        fix = f"\n[dim]{escape(check.fix)}[/]" if check.fix else ""
        table.add_row(MARKS[check.status], check.name, escape(check.detail) + fix)
    Console(highlight=False).print(table)
