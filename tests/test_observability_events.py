"""Events keep their order and their inputs; files of JSON lines survive a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from rollweave.errors import RunFolderError
from rollweave.observability import jsonl
from rollweave.observability.events import Event, EventFile, MemoryRecorder, Recorder


def test_events_reach_every_sink_in_order_with_the_injected_time():
    first: list[Event] = []
    second: list[Event] = []
    ticks = count(10)
    recorder = Recorder(lambda: float(next(ticks)), [first.append, second.append])
    recorder.emit("group.admit", group=17, name="an input may be called name")
    recorder.emit("lease.issue", group=17, members=[0, 1])
    assert first == second
    assert [(event.time, event.name) for event in first] == [(10.0, "group.admit"), (11.0, "lease.issue")]
    assert first[0].data == {"group": 17, "name": "an input may be called name"}


def test_memory_recorder_finds_events_by_name():
    recorder = MemoryRecorder()
    recorder.emit("group.admit", step=0)
    recorder.emit("batch.ready", step=0)
    recorder.emit("group.admit", step=1)
    assert recorder.names() == ["group.admit", "batch.ready", "group.admit"]
    assert [event.data["step"] for event in recorder.named("group.admit")] == [0, 1]


def test_event_file_is_flushed_at_the_end_of_a_step_and_not_before(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    recorder = Recorder(lambda: 1.5, [EventFile(path)])
    recorder.emit("group.admit", group=1)
    assert path.read_text() == ""
    recorder.emit("batch.ready", step=0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"time": 1.5, "name": "group.admit", "data": {"group": 1}}
    assert lines[1]["name"] == "batch.ready"


def test_a_torn_line_is_left_out_with_a_note_and_not_glued_to_the_next(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "rew')
    assert jsonl.read(path).rows == [{"step": 0}]
    assert "the last line is incomplete" in jsonl.read(path).notes[0]
    appender = jsonl.Appender(path)
    appender.append({"step": 1})
    appender.close()
    lines = jsonl.read(path)
    assert lines.rows == [{"step": 0}, {"step": 1}]
    assert "line 2" in lines.notes[0]


def test_json_is_strict_about_numbers_at_any_depth():
    assert jsonl.encode({"a": [float("nan"), {"b": float("inf")}], "c": 1.5}) == '{"a": [null, {"b": null}], "c": 1.5}'


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"missing/events\.jsonl"):
        EventFile(tmp_path / "missing" / "events.jsonl")


def test_a_full_disk_is_a_clear_error():
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with pytest.raises(RunFolderError, match="No space left"):
        jsonl.Appender(Path("/dev/full")).append({"step": 0})


def test_the_package_loads_neither_torch_nor_ray_nor_tensorboard():
    modules = ["events", "phases", "metrics", "catalogue", "transcripts", "summary", "terminal", "report"]
    imports = "; ".join(f"import rollweave.observability.{module}" for module in modules)
    heavy = "[m for m in ('torch', 'ray', 'transformers', 'tensorboard', 'tensorflow') if m in sys.modules]"
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; {imports}; print({heavy})"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
