"""`rollweave doctor [--selftest JOB.yaml [key.sub=value ...]]` checks this machine, or a small run of a job."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollweave.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollweave.runs.doctor import Finding
    from rollweave.runs.selftest import SelfTest

MARKS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "broken": "[red]✗[/]"}


def doctor(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="With --selftest: keys to change.")
    ] = None,
    selftest: Annotated[
        Path | None,
        typer.Option(
            metavar="JOB.yaml",
            help="Run a few small steps of this job at learning rate 0: weights and log-probs must not change.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: versions, threads, memory, what works, and how to fix what does not work."""
    if selftest is not None:
        _selftest(selftest, overrides or (), as_json)
    elif overrides:
        raise typer.BadParameter(f"{' '.join(overrides)}: only --selftest JOB.yaml takes keys to change")
    else:
        _machine(as_json)


def _machine(as_json: bool) -> None:
    from rollweave.runs.doctor import examine, report

    checks = examine()
    if as_json:
        typer.echo(json.dumps(report(checks), indent=2))
    else:
        _print_checks(checks)
    if any(check.status == "broken" for check in checks):
        raise typer.Exit(1)


def _selftest(job: Path, overrides: Sequence[str], as_json: bool) -> None:
    from rollweave.config.load import load_job
    from rollweave.runs.selftest import selftest

    checked = load_job(job, overrides)
    with redirect_stdout(sys.stderr):  # the run prints its progress there, so that only the result goes to stdout
        found = selftest(checked)
    if as_json:
        typer.echo(json.dumps(found.report(), indent=2))
    else:
        _print_selftest(found)
    if not found.passed:
        raise typer.Exit(1)


def _print_selftest(found: SelfTest) -> None:
    from rich.console import Console
    from rich.table import Table

    versions = Table("version", "trainer", "engines (as read from the store)", box=None, padding=(0, 2))
    for version in found.versions:
        versions.add_row(str(version.version), version.trainer, " ".join(version.engines))
    steps = Table("step", "gap mean", "gap max", "ratio p50", "ratio p99", "staleness", box=None, padding=(0, 2))
    for step in found.steps:
        gaps = ["-" if gap is None else f"{gap:.1e}" for gap in (step.gap_mean, step.gap_max)]
        steps.add_row(str(step.step), *gaps, f"{step.ratio_p50:.6f}", f"{step.ratio_p99:.6f}", str(step.staleness))
    console = Console(highlight=False)
    for table in (versions, steps):
        console.print(table)
        console.print()
    _print_checks(found.checks)


def _print_checks(checks: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1))
    for check in checks:
        fix = f"\n[dim]{escape(check.fix)}[/]" if check.fix else ""
        table.add_row(MARKS[check.status], check.name, escape(check.detail) + fix)
    Console(highlight=False).print(table)
