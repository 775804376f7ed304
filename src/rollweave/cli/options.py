"""Options and arguments that several commands share, so that a flag has one name and one help text everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY.SUB=VALUE", help="Keys to change, e.g. training.steps=50."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file instead.")]
RunFolderArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run folder; the run may still be running, or have ended.")
]
Seed = Annotated[int, typer.Option(help="Determines every random choice; the first seed where there are several.")]
