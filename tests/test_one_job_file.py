"""One job file with two tasks, unchanged: inline, on a private Ray, on the lab's hosts, and in simulation.

The same tasks are trained in the same order, and the books have the same keys and add up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.lab.lab import Lab, why_no_lab

from rollweave.cli.main import main
from rollweave.config.cluster import ClusterConfig
from rollweave.config.load import load_file, load_job
from rollweave.observability.events import Event
from rollweave.simulation.of_job import job_scenario, simulate_job

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "tests" / "one_job.yaml"
ROLLWEAVE = (sys.executable, "-m", "rollweave.cli.main")
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
BOOKS = ("ledger/", "tokens/", "queue/", "idle/", "staleness/max", "staleness/mean", "reward/mean", "time/")

DEVICES = """
pools:
  - {name: decode, device: H20, count: 4, role: rollout}
  - {name: prefill, device: H800, count: 2, role: rollout}
  - {name: train, device: H800, count: 4, role: train}
"""
HOSTS = """
pools:
  - {name: train, device: CPU, count: 1, role: train}
  - {name: a, device: CPU, count: 1, role: rollout}
  - {name: b, device: CPU, count: 1, role: rollout}
"""

Rows = list[dict[str, Any]]


def rollweave(*words: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert end.value.code == 0


def rows_of(run: Path) -> Rows:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def trained_tasks(events: Rows) -> list[str]:
    """In the order in which train steps consumed them."""
    tasks = {event["data"]["group"]: event["data"]["task"] for event in events if event["name"] == "group.admit"}
    return [tasks[group] for event in events if event["name"] == "batch.ready" for group in event["data"]["groups"]]


def events_of(run: Path) -> Rows:
    return [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def books(rows: Rows) -> set[str]:
    """The keys of the accounting. Those of tasks that a step did not train are missing in it, so over all steps."""
    return {key for row in rows for key in row if key.startswith(BOOKS)}


def assert_they_add_up(rows: Rows) -> None:
    spent = ("tokens/trained", "tokens/evaluation", *(key for key in rows[-1] if key.startswith("tokens/wasted/")))
    booked = sum(row[key] for row in rows for key in spent)
    assert sum(row["tokens/generated"] for row in rows) == booked + rows[-1]["tokens/in_flight"] > 0
    assert rows[-1]["ledger/task/trained"] == 16


def assert_alike(run: Path, other: Path) -> None:
    assert trained_tasks(events_of(run)) == trained_tasks(events_of(other))
    assert books(rows_of(run)) == books(rows_of(other))
    assert_they_add_up(rows_of(run))


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the others are compared with."""
    folder = tmp_path_factory.mktemp("one-job") / "inline"
    rollweave("train", JOB, "runtime.type=inline", "runtime.threads=1", "--out", folder)
    tasks = trained_tasks(events_of(folder))
    assert len(tasks) == 16 and {task.split("/")[0] for task in tasks} == {"lake", "doors"}
    assert_they_add_up(rows_of(folder))
    return folder


def test_in_simulation_with_the_lengths_of_the_run(
    inline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.yaml").write_text(DEVICES, encoding="utf-8")
    words = ("--recorded", inline, "--cluster", tmp_path / "cluster.yaml", "--model", "qwen3-8b")
    rollweave("simulate", JOB, *words, "--json", "--trace", tmp_path / "trace.json")
    rows: Rows = json.loads(capsys.readouterr().out)["rows"]
    assert books(rows) == books(rows_of(inline))
    assert_they_add_up(rows)
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]


def test_in_simulation_the_same_tasks_are_trained_in_the_same_order(inline: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(DEVICES, encoding="utf-8")
    job, heard = load_job(JOB), list[Event]()
    made = job_scenario(job, inline, load_file(tmp_path / "cluster.yaml", ClusterConfig), "qwen3-8b")
    simulate_job(job, made, [heard.append])
    events = [{"name": event.name, "data": event.data} for event in heard]
    assert trained_tasks(events) == trained_tasks(events_of(inline))


def test_a_task_that_was_not_recorded_is_named(
    inline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.yaml").write_text(DEVICES, encoding="utf-8")
    lake = [line for line in (inline / "trajectories.jsonl").read_text().splitlines() if '"lake/' in line]
    (tmp_path / "trajectories.jsonl").write_text("\n".join(lake), encoding="utf-8")
    words = ("--recorded", tmp_path, "--cluster", tmp_path / "cluster.yaml", "--model", "qwen3-8b")
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in ("simulate", JOB, *words)])
    assert end.value.code == 2
    assert "no finished episode of doors (only of lake)" in capsys.readouterr().err


def test_the_options_of_a_recorded_run_explain_themselves(
    inline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in [
        (("--recorded", inline), "--cluster"),
        (("--recorded", inline, "--cluster", tmp_path / "cluster.yaml"), "--model qwen3-8b"),
        (("--model", "qwen3-8b"), "belong to --recorded"),
    ]:
        (tmp_path / "cluster.yaml").write_text(DEVICES, encoding="utf-8")
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in ("simulate", JOB, *words)])
        assert end.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.slow
def test_on_a_private_ray(inline: Path, tmp_path: Path) -> None:
    # In a process of its own: this one may have a Ray that other tests use.
    command = [*ROLLWEAVE, "train", JOB, "runtime.type=ray", "--out", tmp_path / "ray"]
    subprocess.run(command, check=True, env=os.environ | ENVIRONMENT, capture_output=True)
    assert_alike(tmp_path / "ray", inline)


@pytest.mark.slow
@pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))
def test_on_hosts_that_share_no_disk(inline: Path, tmp_path: Path) -> None:
    with Lab(["driver", "train", "a", "b"]) as lab:
        driver = lab["driver"]
        driver.path("/tmp/cluster.yaml").write_text(HOSTS)
        address = driver.start_ray(num_cpus=1)
        for pool in ("train", "a", "b"):
            lab[pool].start_ray(driver, num_cpus=1, labels={"pool": pool})
        words = ("cluster=/tmp/cluster.yaml", f"runtime.address={address}", "--out", "/tmp/run")
        driver.run([*ROLLWEAVE, "train", str(JOB), *words], ENVIRONMENT)
        assert_alike(driver.path("/tmp/run"), inline)
