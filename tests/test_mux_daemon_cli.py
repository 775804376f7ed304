"""The daemon's commands: what they say when something is wrong, and a daemon that really runs."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mux_daemon_stage import Theatre
from rollweave.cli.main import main
from rollweave.mux.daemon.client import Client, DaemonError
from rollweave.mux.daemon.records import JobRecord, forget_ending, how_it_ended
from rollweave.mux.daemon.store import StateFolder, Store
from rollweave.mux.daemon.views import daemon_screen, explain_screen, jobs_screen
from rollweave.runtimes.machine import Process, alive, only_one

JOB = """
name: small
model: {type: tiny, hidden: 32, layers: 1, head_dim: 8}
environment: {type: frozen_lake}
pipeline: {type: sync+}
runtime: {type: inline, threads: 1}
"""


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says on standard error when it ends with code 2."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def done(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


@pytest.mark.parametrize(
    "words", [("jobs",), ("daemon", "status"), ("daemon", "stop"), ("cancel", "x"), ("jobs", "--explain", "x")]
)
def test_without_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    said = refused(capsys, *words, "--state", str(tmp_path))
    assert f"no daemon has been started on {tmp_path}: run `rollweave daemon start` first" in said


def test_a_daemon_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StateFolder(tmp_path).publish("http://127.0.0.1:9")
    (tmp_path / "token").write_text("x")
    said = refused(capsys, "jobs", "--state", str(tmp_path))
    assert "does not answer at http://127.0.0.1:9" in said
    assert f"rollweave daemon start --state {tmp_path}` (its jobs are not lost)" in said


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("pipeline.type=rollart", "uses both pools at once and leaves nothing to share"),
        ("runtime.type=ray", "submit it with runtime.type=inline"),
        ("model.hiden=3", "hidden"),
    ],
)
def test_jobs_that_cannot_share(tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, words: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("threads: 1", ""))
    said = refused(capsys, "submit", str(tmp_path / "job.yaml"), override, "--state", str(tmp_path / "state"))
    assert words in said


@pytest.mark.parametrize("slo", ["nan", "inf", "-1", "0", "0.9"])
def test_an_slo_that_promises_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], slo: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    said = refused(capsys, "submit", str(tmp_path / "job.yaml"), f"--slo={slo}", "--state", str(tmp_path / "state"))
    assert f"--slo {slo}" in said and "at least 1" in said


def test_submit_wants_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "name a job file" in refused(capsys, "submit", "--state", str(tmp_path))


def test_a_second_daemon_on_the_same_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_one(tmp_path):
        for how in ("--detach", "--foreground"):
            said = refused(capsys, "daemon", "start", how, "--state", str(tmp_path))
            assert f"{tmp_path} is in use by another daemon (process {os.getpid()})" in said
            assert "rollweave daemon stop" in said


def test_a_scheduler_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "daemon", "start", "--foreground", "--policy", "best", "--state", str(tmp_path))
    assert "policy 'best' is unknown" in said


def test_how_a_run_ended_is_read_from_what_it_left(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert how_it_ended(tmp_path, log) == ("killed", "(it has none)", 0)
    log.write_text("step 1\nTraceback\nValueError: no\n\n")
    assert how_it_ended(tmp_path, log) == ("killed", "ValueError: no", 0)
    for reason, expected in (("completed", "finished"), ("target", "finished"), ("interrupted", "failed")):
        (tmp_path / "summary.json").write_text(json.dumps({"exit_reason": reason, "error": "", "steps": 7}))
        assert how_it_ended(tmp_path, log)[0] == expected
    (tmp_path / "summary.json").write_text(
        json.dumps({"exit_reason": "failed", "error": "the reward raised", "steps": 4})
    )
    assert how_it_ended(tmp_path, log) == ("failed", "the reward raised", 4)
    forget_ending(tmp_path)
    assert how_it_ended(tmp_path, log)[0] == "killed"


def test_a_process_number_that_was_given_to_somebody_else_is_not_our_process() -> None:
    from rollweave.runtimes.machine import _started

    born = _started(os.getpid())
    assert born is not None and alive(Process(os.getpid(), born))
    assert not alive(Process(os.getpid(), born - 1))
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    began = _started(child.pid)
    while (state := Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "Z":
        assert state != "X"
    assert not alive(Process(child.pid, began or 0))  # dead, though its code has not been asked for yet
    child.wait()


def test_screens_show_what_is_known() -> None:
    view = {
        "id": "a-1",
        "source": "a.yaml",
        "state": "running",
        "doing": "runs on train-0",
        "error": "",
        "slo": 1.5,
        "step": 3,
        "steps": 9,
        "solo_seconds": 6.0,
        "planned_seconds": 9.0,
        "iteration_seconds": 8.5,
        "tokens": 1200,
        "slow_down": 1.417,
        "t_roll": 2.0,
        "t_train": 4.0,
        "cold_start_seconds": 5.0,
        "warm_start_seconds": 0.004,
        "group": 1,
        "mode": "rr",
        "run": "runs/a",
        "why": ["open a-1: new group"],
        "events": [[0.0, "placed", "a-1", ""]],
    }
    head, row = jobs_screen([view]).splitlines()
    assert row.split() == [
        "a-1",
        "running",
        "3/9",
        "6.00",
        "s",
        "9.00",
        "s",
        "8.50",
        "s",
        "1.42x",
        "1.5x",
        "runs",
        "on",
        "train-0",
    ]
    assert head.index("SLO") + 3 == row.index("1.5x") + 4
    assert "open a-1: new group" in explain_screen(view) and "4 ms warm" in explain_screen(view)
    fresh = {
        **view,
        **dict.fromkeys(("t_roll", "solo_seconds", "planned_seconds", "iteration_seconds", "slow_down", "group")),
    }
    assert "not measured yet" in explain_screen(fresh)
    nodes = [{"node": "rollout-0", "holder": "a-1", "seconds": 1.25, "waiting": ["b-2"]}]
    daemon = {"nodes": nodes, "jobs": {"running": 1}, "state_folder": "s", "set_aside": ["b-2 is set aside"]}
    assert "a-1 since 1.2 s" in daemon_screen(daemon) and "b-2 is set aside" in daemon_screen(daemon)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_job_that_cannot_be_profiled_says_why_and_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("layers: 1", "layers: 1, heads: 6, kv_heads: 4"))
    state = ["--state", str(tmp_path / "state")]
    done("daemon", "start", *state)
    client = Client(StateFolder(tmp_path / "state"))
    try:
        done("submit", str(tmp_path / "job.yaml"), *state)
        while (job := client.get("/jobs")[0])["state"] == "profiling":
            time.sleep(0.1)
    finally:
        done("daemon", "stop", *state)
    assert (job["state"], job["error"]) == ("failed", "model.heads (6) must be a multiple of model.kv_heads (4)")


def test_a_daemon_starts_beside_a_job_that_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = StateFolder(tmp_path)
    store = Store(folder.database)
    store.save([JobRecord("old-1", "old", "old.yaml", math.nan, 0.0)], {"numbered": 1})
    store.close()
    done("daemon", "start", "--state", str(tmp_path))
    try:
        assert "job old-1 is set aside" in capsys.readouterr().out
        done("daemon", "status", "--state", str(tmp_path))
        assert "job old-1 is set aside" in capsys.readouterr().out
        assert Client(folder).get("/jobs") == []
    finally:
        done("daemon", "stop", "--state", str(tmp_path))


def test_a_daemon_does_not_start_on_a_placement_that_contradicts_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theatre = Theatre(tmp_path)
    theatre.running("a")
    placement = theatre.controller.facts()["scheduler"]
    placement["train"]["used"] = 2
    theatre.store.save([], {"scheduler": placement})
    theatre.store.close()
    said = refused(capsys, "daemon", "start", "--foreground", "--state", str(tmp_path))
    assert f"{tmp_path / 'state.db'}: the jobs cannot go on" in said
    assert "invariant 7: groups hold 1 nodes, the pool counts 2" in said


def test_state_of_an_older_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theatre = Theatre(tmp_path)
    theatre.running("a")
    theatre.store.save([], {"version": 1, "turns": {}})
    theatre.store.close()
    said = refused(capsys, "daemon", "start", "--foreground", "--state", str(tmp_path))
    assert f"{tmp_path / 'state.db'} has format 1, this version of Rollweave reads format 2" in said
    assert "name another --state folder and submit the jobs again" in said


def test_the_old_name_of_the_command_names_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`rollweave daemon start | status | stop`" in refused(capsys, "cluster", "start")


def test_a_real_daemon_answers_only_to_its_token_and_comes_back(tmp_path: Path) -> None:
    state = tmp_path / "state"
    done("daemon", "start", "--state", str(state), "--rollout-nodes", "2")
    folder = StateFolder(state)
    try:
        assert (state / "token").stat().st_mode & 0o777 == 0o600
        assert len(Client(folder).get("/daemon")["nodes"]) == 3
        secret = (state / "token").read_text()
        (state / "token").write_text("guess")
        with pytest.raises(DaemonError, match="wrong or missing token"):
            Client(folder).get("/jobs")
        (state / "token").write_text(secret)
        os.kill(folder.address()["pid"], signal.SIGKILL)
        done("daemon", "start", "--state", str(state), "--rollout-nodes", "2")
        assert Client(folder).get("/jobs") == []
    finally:
        done("daemon", "stop", "--state", str(state))
    with only_one(state):
        pass
