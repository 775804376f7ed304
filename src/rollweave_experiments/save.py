"""Writes results: a folder with one JSON file and the plots of each experiment, or one page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollweave.errors import RunFolderError
from rollweave_experiments.page import page
from rollweave_experiments.plot import plots, standalone
from rollweave_experiments.verdict import ExperimentResult, scores


def as_json(results: Sequence[ExperimentResult]) -> dict[str, Any]:
    return {
        "seeds": list(results[0].seeds),
        "scores": {s.kind: {"rows": s.rows, "ok": s.ok, "near": s.near, "miss": s.miss} for s in scores(results)},
        "experiments": [result.as_json() for result in results],
    }


def write_page(results: Sequence[ExperimentResult], file: Path) -> None:
    _write(file, page(results))


def write_folder(results: Sequence[ExperimentResult], folder: Path) -> None:
    """Write NAME.json and NAME.svg (NAME-2.svg ...) for each experiment."""
    for result in results:
        _write(folder / f"{result.study.name}.json", json.dumps(result.as_json(), indent=1) + "\n")
        for i, plot in enumerate(plots(result)):
            _write(folder / f"{result.study.name}{f'-{i + 1}' if i else ''}.svg", standalone(plot))


def _write(file: Path, content: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write {file}: {error.strerror}. Choose another place") from error


def read_results(file: Path) -> dict[str, Any]:
    """Read a file with the output of `rollweave experiments run all --json`."""
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
