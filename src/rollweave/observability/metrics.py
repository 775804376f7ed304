"""Writes metrics.jsonl: one object per train step, `step` first, the other keys sorted, every key in the catalogue.

The same numbers go to TensorBoard, through the `tensorboard` package itself, without torch or tensorflow.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollweave.observability import catalogue, jsonl

Value = float | int | str | None

log = logging.getLogger(__name__)


class TensorBoardWriter:
    """Writes a step's numbers into a folder that `tensorboard --logdir` shows."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """`resumed_at` is the next step of a resumed run: TensorBoard hides older values from that step on."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]

        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = EventFileWriter(str(folder))
        if resumed_at is not None:
            self.go_back(resumed_at)

    def go_back(self, step: int) -> None:
        """From now on TensorBoard hides the values that it has from this step on."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]

        self._writer.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        values = [Summary.Value(tag=key, simple_value=number) for key, number in numbers.items()]
        # TensorBoard expects the time of day, also if the run is on the virtual clock.
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MetricsWriter:
    """Appends steps to a run folder. A resumed run continues the file; `resumed_at` is its next step."""

    def __init__(self, folder: Path, tensorboard: bool = False, resumed_at: int | None = None) -> None:
        self._lines = jsonl.Appender(folder / "metrics.jsonl")
        self._board = TensorBoardWriter(folder / "tensorboard", resumed_at) if tensorboard else None

    def write(self, step: int, metrics: Mapping[str, Value]) -> dict[str, Value]:
        """Write one step and return the row as written. Unknown keys are refused before anything is written."""
        row: dict[str, Value] = {"step": step}
        for key in sorted(metrics.keys() - {"step"}):
            catalogue.check(key)
            row[key] = _finite(step, key, metrics[key])
        self._lines.append(row)
        if self._board is not None:
            numbers = {key: float(x) for key, x in row.items() if isinstance(x, float | int) and key != "step"}
            self._board.write(step, numbers)
        return row

    def go_back(self, step: int) -> None:
        """The rows from this step on were cut away."""
        if self._board is not None:
            self._board.go_back(step)

    def close(self) -> None:
        self._lines.close()
        if self._board is not None:
            self._board.close()


def _finite(step: int, key: str, value: Value) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        log.warning("step %d: %s is %s; written as null", step, key, value)
        return None
    return value


def read_metrics(folder: Path) -> jsonl.Lines:
    """Read the steps of a run in order, one row each. After a resume, the later values of a step win."""
    lines = jsonl.read(folder / "metrics.jsonl")
    steps: dict[int, dict[str, Any]] = {}
    for row in lines.rows:
        if isinstance(row.get("step"), int):
            steps.setdefault(row["step"], {}).update(row)
    return jsonl.Lines([steps[step] for step in sorted(steps)], lines.notes)
