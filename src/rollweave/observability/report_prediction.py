"""Predicted against measured, in a run's report: what a simulation on a profiled machine said before, or says of it.

The prediction is a small file in the run folder, under the names of the metrics: `rollweave report RUN --profile FILE`
writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

from rollweave.errors import RunFolderError
from rollweave.observability.report_data import Run
from rollweave.observability.text import duration, percent

FILE = "prediction.json"

SKIPPED_STEPS = 3
"""The first steps fill the pipeline; a prediction is of the others."""

LABELS = {
    "time/step": "a step",
    "time/get_batch": "of it, waiting for data",
    "time/train": "of it, training",
    "idle/engine": "engine idle",
    "idle/trainer": "trainer idle",
}


def write_prediction(run: Path, prediction: Mapping[str, float]) -> None:
    try:
        (run / FILE).write_text(json.dumps(prediction, indent=1), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write {run / FILE}: {error.strerror}") from error


def prediction(run: Run) -> str:
    """The section; nothing if nobody predicted this run, or it is too short to compare."""
    predicted = _read(run.folder)
    rows = "".join(_row(run, key, predicted[key]) for key in LABELS if key in predicted)
    if not rows or len(run.steps) <= SKIPPED_STEPS:
        return ""
    head = '<tr><th></th><th class="n">predicted</th><th class="n">measured</th><th class="n">difference</th></tr>'
    hint = f'<span class="hint">steps {SKIPPED_STEPS + 1} to {len(run.steps)}</span>'
    return f'<h2>Predicted and measured {hint}</h2><div class="card"><table>{head}{rows}</table></div>'


def _row(run: Run, key: str, predicted: float) -> str:
    values = [y for _, y in run.points(key)][SKIPPED_STEPS:]
    if not values:
        return ""
    measured = sum(values) / len(values)
    if key.startswith("idle/"):
        cells = percent(predicted), percent(measured), f"{100 * (predicted - measured):+.0f} points"
    else:
        share = f"{predicted / measured - 1:+.0%}" if measured > 0 else "-"
        cells = duration(predicted), duration(measured), share
    return f"<tr><td>{escape(LABELS[key])}</td>" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>"


def _read(folder: Path) -> dict[str, float]:
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, int | float)}
