"""TensorBoard scalars without torch or tensorflow: the event file format is tensorboard's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardWriter:
    """Writes a step's numbers into a folder that `tensorboard --logdir` shows."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """`resumed_at`: the steps from there on that older files of the folder hold are done again, and not shown."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]

        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = EventFileWriter(str(folder))
        if resumed_at is not None:
            self._writer.add_event(Event(step=resumed_at, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, numbers: Mapping[str, float], wall_time: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        values = [Summary.Value(tag=key, simple_value=number) for key, number in numbers.items()]
        self._writer.add_event(Event(wall_time=wall_time, step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
