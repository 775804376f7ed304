"""Reads a run folder for `report` and `status`, whether the run has ended, crashed or is still going."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rollweave.errors import RunFolderError
from rollweave.observability.jsonl import read_object
from rollweave.observability.metrics import read_metrics
from rollweave.observability.summary import Summary, is_train_step, names, summarise

RecordedRow = Mapping[str, Any]


@dataclass(slots=True)
class RunRecord:
    """What a run folder says about its run, apart from its events and transcripts."""

    folder: Path
    name: str
    config: str
    """The text of config.yaml."""
    settings: Mapping[str, Any]
    """The parsed content of config.yaml; empty if it cannot be parsed."""
    rows: Sequence[RecordedRow]
    steps: Sequence[RecordedRow]
    """The rows of train steps."""
    summary: Summary
    """From summary.json; made from the metrics if the run is not finished."""
    finished: bool
    notes: list[str]
    """Lines that could not be read, and steps whose curves may mislead."""

    def points(self, key: str) -> list[tuple[float, float]]:
        """(step, value) for each step with a number for this key."""
        return [(float(row["step"]), float(x)) for row in self.steps if isinstance(x := row.get(key), int | float)]

    def evaluations(self) -> list[tuple[float, float]]:
        """(version, held-out reward) of each evaluation."""
        found = {
            row.get("eval/version", row["step"]): x for row in self.rows if (x := row.get("eval/reward")) is not None
        }
        return [(float(version), float(found[version])) for version in sorted(found)]

    def setting(self, section: str, key: str) -> Any:
        value = self.settings.get(section)
        return value.get(key) if isinstance(value, Mapping) else None

    def last(self, prefix: str) -> dict[str, Any]:
        """The latest value of every key under a prefix."""
        merged = {key: value for row in self.rows for key, value in row.items() if value is not None}
        return {name: merged[prefix + name] for name in names(self.rows, prefix) if prefix + name in merged}


def load_run(folder: Path) -> RunRecord:
    """Read a run folder. Any other folder is refused."""
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is not a folder: name the run folder that `rollweave train` printed")
    if not (folder / "metrics.jsonl").is_file() and not (folder / "config.yaml").is_file():
        raise RunFolderError(
            f"{folder} is not a run folder: it has neither config.yaml nor metrics.jsonl. "
            f"{_runs_below(folder)}Runs are written by `rollweave train JOB.yaml --out DIR`"
        )
    metrics = read_metrics(folder)
    config = folder / "config.yaml"
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    settings = _settings(text)
    name = str(settings.get("name") or folder.resolve().name)
    summary = _summary(folder)
    return RunRecord(
        folder=folder,
        name=name,
        config=text,
        settings=settings,
        rows=metrics.rows,
        steps=[row for row in metrics.rows if is_train_step(row)],
        summary=summary or summarise(name, metrics.rows, "interrupted"),
        finished=summary is not None,
        notes=[*metrics.notes, *_warnings(metrics.rows)],
    )


def _warnings(rows: Sequence[RecordedRow]) -> list[str]:
    """Warnings about steps whose curves may mislead."""
    uncorrected = [row["step"] for row in rows if row.get("offpolicy/uncorrected")]
    skipped = sum(row.get("grad/skipped") or 0 for row in rows)
    warnings = []
    if uncorrected:
        warnings.append(
            f"{len(uncorrected)} steps (the first: {uncorrected[0]}) trained stale data with a ratio of exactly 1: "
            "nothing corrected for it. See training.loss.denominator"
        )
    if skipped:
        warnings.append(f"{skipped:g} updates were skipped because their gradient was not finite")
    return warnings


def _runs_below(folder: Path) -> str:
    below = sorted(path.parent.name for path in folder.glob("*/metrics.jsonl"))
    return f"It contains runs, though: {', '.join(below[:5])}. " if below else ""


def _settings(text: str) -> Mapping[str, Any]:
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return parsed if isinstance(parsed, Mapping) else {}


def _summary(folder: Path) -> Summary | None:
    """Read summary.json if there is one. A summary of another release is ignored: it can be made from the metrics."""
    try:
        return Summary(**read_object(folder / "summary.json"))
    except TypeError:
        return None
