"""`rollweave simulate` and `rollweave trace`: files, messages, JSON, the timeline."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rollweave.cli.main import main
from rollweave.config.load import load_file
from rollweave.config.scenario import Scenario
from rollweave.errors import ConfigError
from rollweave.observability.events import Event
from rollweave.observability.timeline import Timeline

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "simulate" / "mixed_tasks.yaml"

CLUSTER = """
pools:
  - {name: rollout, device: H20, count: 4, role: rollout}
  - {name: train, device: H800, count: 4, role: train}
"""

SMALL = """
training: {steps: 2}
cluster: cluster.yaml
workload: {tasks: [{preset: gem-math}]}
rollout: {groups_per_step: 2, group_size: 2}
"""


def write(folder: Path, simulation: str = SMALL, cluster: str = CLUSTER) -> Path:
    (folder / "cluster.yaml").write_text(cluster, encoding="utf-8")
    file = folder / "simulation.yaml"
    file.write_text(simulation, encoding="utf-8")
    return file


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_recipe_loads() -> None:
    scenario = load_file(RECIPE, Scenario)
    assert [pool.name for pool in scenario.cluster.pools] == ["decode", "prefill", "train"]


def test_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "simulate", write(tmp_path), "pipeline.alpha=2")
    assert "rollart, staleness bound (alpha) 2, 8 devices, seed 0" in shown
    assert {"rollout", "train"} <= {line.split()[0] for line in shown.splitlines() if line.strip()}


def test_json_is_the_same_bytes_for_the_same_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path)
    one, again, other = (run(capsys, "simulate", file, "--json", "--seed", seed) for seed in (3, 3, 4))
    assert one == again != other
    data = json.loads(one)
    assert data["seed"] == 3 and len(data["rows"]) == 2


def events(trace: Path) -> list[dict[str, Any]]:
    content: dict[str, Any] = json.loads(trace.read_text(encoding="utf-8"))
    return content["traceEvents"]  # type: ignore[no-any-return]


def test_a_timeline_that_perfetto_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    data = json.loads(run(capsys, "simulate", write(tmp_path), "--json", "--trace", trace))
    slices = [event for event in events(trace) if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and {"pid", "tid", "ts", "name"} <= event.keys() for event in slices)
    of_process: dict[int, list[dict[str, Any]]] = {}
    for event in slices:
        of_process.setdefault(event["pid"], []).append(event)
    loop, _, episodes, engines = (of_process[process] for process in (1, 2, 3, 4))
    assert [event["name"] for event in loop].count("train") == 2
    assert len(episodes) >= 8 and len(engines) >= data["turns"]
    assert max(event["ts"] + event["dur"] for event in slices) <= data["seconds"] * 1e6 + 1


def test_nothing_on_a_lane_overlaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    run(capsys, "simulate", write(tmp_path), "--json", "--trace", trace)
    lanes: dict[int, list[tuple[int, int]]] = {}
    for event in events(trace):
        if event["ph"] == "X" and event["pid"] == 3:
            lanes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for slices in lanes.values():
        slices.sort()
        assert all(before[1] <= after[0] + 1 for before, after in pairwise(slices))


def test_a_timeline_of_recorded_events() -> None:
    timeline = Timeline()
    for event in (
        Event(1.0, "phase.begin", {"phase": "train", "step": 0}),
        Event(1.5, "episode.begin", {"id": "0.0.0", "group": 0, "free": 1, "slots": 2, "in_line": 0}),
        Event(3.0, "phase.end", {"phase": "train", "step": 0}),
        Event(4.0, "episode.end", {"id": "0.0.0", "group": 0, "free": 2, "slots": 2, "in_line": 0}),
        Event(5.0, "something.else", {}),
    ):
        timeline(event)
    slices = {event["name"]: (event["ts"], event["dur"]) for event in timeline.slices if event["ph"] == "X"}
    assert slices == {"train": (1_000_000, 2_000_000), "group 0": (1_500_000, 2_500_000)}


@pytest.mark.parametrize(
    ("simulation", "cluster", "message"),
    [
        (SMALL + "rolout: {}\n", CLUSTER, r"simulation\.yaml:6: rolout: no such key; did you mean rollout"),
        (SMALL, CLUSTER.replace("role: train", "role: trane"), r"cluster\.yaml:4: cluster\.pools\[1\]\.role"),
        (SMALL, CLUSTER.replace("H800", "H801"), "no device class 'H801'; did you mean 'H800'"),
        (
            SMALL,
            CLUSTER.replace("count: 4, role: rollout", "count: 4, role: rollout, tensor_parallel: 3"),
            "divided into engines",
        ),
        (SMALL, CLUSTER.replace("name: train", "name: rollout"), "two pools are called rollout"),
        (SMALL.replace("cluster.yaml", "nowhere.yaml"), CLUSTER, "no such file"),
        (SMALL + "steps: 3\n", CLUSTER, r"simulation\.yaml:6: steps: is called training\.steps now, as in a job file"),
        (
            SMALL + "constants: {max_batch: 8, prefill_chunk: 64}\n",
            CLUSTER,
            r"(?s)constants\.max_batch: is called slots now.*constants\.prefill_chunk: is called prefill_tokens now",
        ),
        (
            SMALL,
            CLUSTER.replace("count: 4, role: rollout", "count: 4, role: rollout, max_batch: 8"),
            r"cluster\.yaml:3: cluster\.pools\[0\]\.max_batch: is called slots now",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, simulation: str, cluster: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_file(write(tmp_path, simulation, cluster), Scenario)
