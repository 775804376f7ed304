"""`rollweave status`: who waits for whom, where the last minute went, and whether a run lives, ended or died."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rollweave.cli.main import app
from rollweave.clock import Waiting
from rollweave.errors import RunFolderError
from rollweave.observability.accounting import Accountant
from rollweave.observability.events import Event
from rollweave.observability.meters import LoopTime
from rollweave.observability.screen import Header
from rollweave.observability.status import Status, read_status
from rollweave.observability.status_board import LastMinute, PoolTimes, StatusBoard
from rollweave.observability.status_screen import status_screen
from rollweave.observability.waits import WaitNode, wait_for_graph
from synthetic_run import write_run

HEADER = Header("quickstart", "rollart", "inline", "tiny", 60, 1.0)


class World:
    """A driver in the middle of a step: group 7 has two members left, one of them hangs; group 8 waits in line."""

    def __init__(self) -> None:
        self.time = 0.0
        self.accountant = Accountant()
        for name, data in [
            ("group.admit", {"group": 7, "version": 6}),
            ("group.admit", {"group": 8, "version": 6}),
            ("phase.begin", {"phase": "train", "step": 5}),
        ]:
            self.say(name, **data)
        self.begin("7.3.0", 7, free=1)
        self.begin("7.5.2", 7, free=0)
        self.time = 30.0
        self.say("phase.end", phase="train", step=5)
        self.say("phase.begin", phase="get_batch", step=6)

    def say(self, name: str, **data: Any) -> None:
        self.accountant(Event(self.time, name, data))

    def begin(self, id: str, group: int, free: int) -> None:
        self.say("episode.begin", id=id, group=group, free=free, slots=2, in_line=1)

    def waits(self) -> list[Waiting]:
        return [
            Waiting("trainer", "batch 6: 0 of 1 groups", self.time - 30),
            Waiting("episode 7.3.0", "environment step 12", self.time - 32),
            Waiting("episode 7.5.2", "generation of turn 2", 1.0),
        ]


def flat(nodes: list[WaitNode], depth: int = 0) -> list[str]:
    return [
        line
        for node in nodes
        for line in [f"{'  ' * depth}{node.who} waits for {node.what} {node.seconds:g}", *flat(node.because, depth + 1)]
    ]


def test_the_graph_leads_from_the_trainer_to_one_call_of_one_environment():
    world = World()
    world.time = 70.0
    graph = wait_for_graph(world.waits(), world.accountant.work, world.accountant.slots, world.time)
    assert flat(graph) == [
        "trainer waits for batch 6: 0 of 1 groups 40",
        "  group 7 waits for 2 episodes 70",
        "    member 3 waits for environment step 12 38",
        "    member 5 (attempt 3) waits for generation of turn 2 1",
        "  group 8 waits for a free environment 70",
    ]


def test_a_group_that_is_named_is_the_only_one_shown():
    world = World()
    waits = [Waiting("trainer", "group 8, which is next: member 0 still plays", 3.0)]
    graph = wait_for_graph(waits, world.accountant.work, world.accountant.slots, 31.0)
    assert [child.who for child in graph[0].because] == ["group 8"]


def test_rollout_that_the_bound_holds_back_is_a_wait_too():
    world = World()
    world.say("episode.end", id="7.3.0", group=7, free=1, slots=2, in_line=0)
    graph = wait_for_graph([], world.accountant.work, world.accountant.slots, 42.0)
    assert flat(graph) == [
        "rollout waits for the next version: 1 of 2 slots are free, but the staleness bound admits no more 12"
    ]


def test_a_wait_for_an_evaluation_is_explained_by_its_episodes():
    world = World()
    world.begin("eval.6.4.0", -1, free=0)
    waits = [Waiting("weight update", "evaluation of version 6", 9.0), Waiting("episode eval.6.4.0", "reward", 2.0)]
    graph = wait_for_graph(waits, world.accountant.work, world.accountant.slots, 31.0)
    assert flat(graph)[:2] == [
        "weight update waits for evaluation of version 6 9",
        "  episode eval.6.4.0 waits for reward 2",
    ]


def test_a_reward_that_is_awaited_is_named():
    """Member 3 by its host's own word, member 5 by what the driver knows."""
    world = World()
    for id, names in (("7.3.0", ["judge"]), ("7.5.2", ["judge", "format"])):
        world.say("episode.end", id=id, group=7, free=1, slots=2, in_line=1)
        world.say("reward.begin", id=id, group=7, rewards=names, host=0)
    world.begin("8.0.0", 8, free=0)
    waits = [
        Waiting("trainer", "group 7, which is next: member 3, 5 is being scored", 3.0),
        Waiting("scoring of 7.3.0", "reward judge", 12.0),
    ]
    assert flat(wait_for_graph(waits, world.accountant.work, world.accountant.slots, 50.0)) == [
        "trainer waits for group 7, which is next: member 3, 5 is being scored 3",
        "  group 7 waits for 2 rewards 50",
        "    member 5 (attempt 3) waits for reward judge, format 20",
        "    member 3 waits for reward judge 12",
    ]
    world.say("reward.end", id="7.3.0", reward=1.0, cause=None, threads_left=0)
    world.say("attempt.end", id="7.5.2", end="stale", tokens=3)  # given up while it was scored
    assert not world.accountant.work.scoring


def test_an_evaluation_may_wait_for_a_reward():
    world = World()
    world.say("reward.begin", id="eval.6.4.0", group=-1, rewards=["judge"], host=0)
    waits = [Waiting("weight update", "evaluation of version 6", 9.0)]
    graph = wait_for_graph(waits, world.accountant.work, world.accountant.slots, 31.0)
    assert flat(graph)[:2] == [
        "weight update waits for evaluation of version 6 9",
        "  episode eval.6.4.0 waits for reward judge 1",
    ]


def test_what_happened_before_the_last_minute_is_forgotten():
    minute = LastMinute(seconds=60)
    for time in range(0, 201, 10):
        minute.look(
            float(time), {"engine": PoolTimes(time * 2, {"generate": min(time, 140), "recompute": max(0, time - 140)})}
        )
    assert minute.seconds == 60
    assert minute.shares() == {"engine": {"recompute": 0.5}}  # 140 to 200: 60 of 120 engine-seconds


def test_a_phase_within_a_phase_counts_once():
    loop = LoopTime()
    loop.begin("eval", 0.0)
    loop.begin("save", 4.0)
    loop.end("save", 5.0)
    assert loop.doing == ("eval", 0.0)
    assert loop.totals(7.0) == {"eval": 6.0, "save": 1.0}


def board(folder: Path, world: World, wall: float = 1000.0) -> StatusBoard:
    ledger = {"tasks": {"trained": 5, "open": 2}, "attempts": {"trained": 40, "open": 2}}
    return StatusBoard(folder, HEADER, world.accountant, lambda: ledger, lambda: world.time, lambda: wall)


def test_the_board_says_where_the_time_went(tmp_path: Path):
    world = World()
    made = board(tmp_path, world)
    for second in range(30, 91):
        world.time = float(second)
        made.update(world.waits(), 1, {"generate": (second - 30) / 4})
    written = json.loads((tmp_path / "status.json").read_text())
    pools = written["last_minute"]["pools"]
    assert pools["engine"] == {"generate": pytest.approx(0.25)}
    assert pools["trainer"] == {"get_batch": pytest.approx(1.0)}
    assert pools["environments"] == {"step": pytest.approx(0.5), "generate": pytest.approx(0.5)}
    assert written["phase"] == {"name": "get_batch", "seconds": 60.0}
    assert written["queue"]["running"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_an_engine_that_dies_does_not_change_what_the_other_one_did(tmp_path: Path):
    world = World()
    made = board(tmp_path, world)
    for second in range(30, 121):
        world.time = float(second)
        made.update([], 2 if second <= 90 else 1, {"generate": float(second - 30)})  # one of them is busy all the time
    pools = json.loads((tmp_path / "status.json").read_text())["last_minute"]["pools"]
    assert pools["engine"] == {"generate": pytest.approx(60 / (30 * 2 + 30 * 1))}


def write_status(folder: Path, pid: int, host: str | None = None, wall: float = 1000.0) -> None:
    world = World()
    world.time = 71.0
    made = board(folder, world, wall)
    made.update(world.waits(), 1, {})
    world.time = 72.0
    made.update(world.waits(), 1, {"generate": 0.5})
    (folder / "lock").write_text(json.dumps({"pid": pid, "host": host or socket.gethostname()}))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_living_run(tmp_path: Path):
    run = write_run(tmp_path / "run", finished=False)
    write_status(run, os.getpid())
    status = read_status(run, lambda: 1001.0)
    assert (status.state, status.pid, status.silent) == ("running", os.getpid(), None)
    assert (status.step, status.steps) == (60, 60)
    assert status.seconds_left == 0
    assert read_status(run, lambda: 1046.0).silent == 46


def test_a_run_that_was_killed_says_what_it_was_doing(tmp_path: Path):
    run = write_run(tmp_path / "run", finished=False)
    write_status(run, dead_pid())
    status = read_status(run, lambda: 1100.0)
    assert (status.state, status.silent) == ("dead", 100)
    text = shown(status)
    assert "dead: its process ended without a summary, last status 1m 40s ago" in text
    assert "member 3 waits for environment step 12" in text


def test_a_run_that_ended(tmp_path: Path):
    run = write_run(tmp_path / "run")
    write_status(run, dead_pid())
    (run / "lock").write_text("")  # as a run leaves it that ends in order
    status = read_status(run, lambda: 1100.0)
    assert (status.state, status.reason) == ("ended", "target")
    assert "waits for" not in shown(status)


def test_a_resumed_run_lives_though_its_earlier_process_said_goodbye(tmp_path: Path):
    run = write_run(tmp_path / "run")
    write_status(run, os.getpid())
    assert read_status(run, lambda: 1001.0).state == "running"


def test_what_an_earlier_process_wrote_is_not_taken_for_what_this_one_does(tmp_path: Path):
    run = write_run(tmp_path / "run")
    write_status(run, os.getppid())  # it holds the lock, but the status is ours
    status = read_status(run, lambda: 2000.0)
    assert (status.state, status.now, status.silent) == ("running", {}, None)
    assert "preparing" in shown(status)


def test_on_another_machine_only_the_heartbeat_counts(tmp_path: Path):
    run = write_run(tmp_path / "run", finished=False)
    write_status(run, 1, host="elsewhere")
    assert read_status(run, lambda: 1010.0).state == "running"
    assert read_status(run, lambda: 9000.0).state == "dead"


def test_a_run_that_has_not_begun_and_files_that_are_none(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("name: fresh\ntraining: {steps: 9}\n")
    for name in ("status.json", "lock", "summary.json"):
        (tmp_path / name).write_text("{torn")
    status = read_status(tmp_path)
    assert (status.state, status.name, status.steps) == ("new", "fresh", 9)
    assert "not training yet" in shown(status)


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(RunFolderError, match="rollweave train"):
        read_status(tmp_path)


def shown(status: Status, width: int = 100) -> str:
    console = Console(width=width, record=True, force_terminal=True)
    console.print(status_screen(status))
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_fits_and_shows_all_three(tmp_path: Path, width: int):
    run = write_run(tmp_path / "run", finished=False)
    write_status(run, os.getpid())
    text = shown(read_status(run, lambda: 1001.0), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "60 of 60" in text
    assert "group 7 waits for 2 episodes" in text
    assert "where the last" in text and "generate 50%" in text


def test_the_command(tmp_path: Path):
    run = write_run(tmp_path / "run")
    answer = CliRunner().invoke(app, ["status", str(run), "--json"])
    assert answer.exit_code == 0
    assert json.loads(answer.output)["state"] == "ended"
    assert "ended: target" in CliRunner().invoke(app, ["status", str(run)]).output
    assert "ended: target" in CliRunner().invoke(app, ["status", str(run), "--watch"]).output  # and comes back
