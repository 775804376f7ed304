"""The program `rollweave`: registers all commands, and prints an error that the user can fix as one clear line.

The program must start fast, so each command imports what it needs when it runs: `rollweave --help` loads neither
torch nor ray nor pydantic.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from rollweave.cli.cluster import cluster, scale
from rollweave.cli.daemon import app as daemon_app
from rollweave.cli.doctor import doctor
from rollweave.cli.env import app as env_app
from rollweave.cli.eval import evaluate
from rollweave.cli.inspect import replay, report, status, trace
from rollweave.cli.jobs import cancel, jobs, submit
from rollweave.cli.mux import app as mux_app
from rollweave.cli.reward import app as reward_app
from rollweave.cli.simulate import plan, profile, simulate
from rollweave.cli.train import train
from rollweave.errors import RollweaveError

app = typer.Typer(
    name="rollweave",
    help="Reinforcement-learning post-training of LLM agents: one control plane, two clocks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would double the time that --help takes
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command("eval")(evaluate)
for command in (status, replay, report, trace, simulate, doctor, submit, jobs, cancel, profile, plan, cluster, scale):
    app.command()(command)
app.add_typer(env_app, name="env")
app.add_typer(daemon_app, name="daemon")
app.add_typer(mux_app, name="mux")
app.add_typer(reward_app, name="reward")
if find_spec("rollweave_experiments"):  # a package of its own, which may be left out
    experiments = import_module("rollweave_experiments.cli").app
    app.add_typer(experiments, name="experiments", help="Reproduce the papers' experiments in simulation.")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"rollweave {version('rollweave')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; after any command, or as ROLLWEAVE_DEBUG=1.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error that the user can fix is printed without a traceback, and the exit code is 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words or os.environ.get("ROLLWEAVE_DEBUG", "") not in ("", "0")
    words = [word for word in words if word != "--debug"]
    try:
        if words[:1] == ["cluster"] and words[1:2] in (["start"], ["stop"], ["status"]):
            raise RollweaveError("the daemon's commands are `rollweave daemon start | status | stop`")
        app(words, prog_name="rollweave")
    except RollweaveError as error:
        if debug:
            raise
        typer.echo(f"{typer.style('error:', fg='red', bold=True)} {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
