"""Real processes, killed with SIGKILL in the middle of a run: what must survive that is the run, and its books.

The logic behind it is tested without processes in test_restarts.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.control.null import NullDialogue, NullEngine, NullScorer
from bench.kill.check import problems
from tests.hanging_world import HOST, Patient

from fleets import proxy_of
from rollweave.clock import Clock, run_wall
from rollweave.config.control import RolloutConfig
from rollweave.engines.protocol import Sampling
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.registry import EnvironmentFactory, maker
from rollweave.observability.events import read_events, surviving
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.link import Lease, Report
from rollweave.rollout.manager import Stage
from rollweave.tasks import Task
from rollweave.trajectory import Outcome

ROOT = Path(__file__).parents[1]
GROUPS, MEMBERS = 4, 4
SMALL = [
    *("model.hidden=32", "model.warm_start.steps=5", "model.warm_start.episodes=50", "rollout.max_turns=4"),
    *(f"rollout.groups_per_step={GROUPS}", f"rollout.group_size={MEMBERS}", "rollout.environments=16"),
    *("evaluation.every=0", "evaluation.target=null", "logging.tensorboard=false"),
]


class Run:
    """`rollweave train` as a user starts it."""

    def __init__(
        self, out: Path, steps: int, *overrides: str, program: Sequence[str] = ("-m", "rollweave.cli.main")
    ) -> None:
        self.out = out
        self.steps = steps
        recipe = str(ROOT / "recipes" / "quickstart.yaml")
        words = ["train", recipe, *SMALL, f"training.steps={steps}", *overrides, "--out", str(out)]
        self.process = subprocess.Popen([sys.executable, *program, *words], stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def until_step(self, step: int) -> None:
        """Returns when the view has shown a step: the next one is under way."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.split("/")[0].split() == ["step", str(step)]:
                return
        raise AssertionError(f"the run ended before step {step}")

    def pid(self, worker: str) -> int:
        """Of the worker's latest life."""
        return int([event["pid"] for event in self.events("worker.ready") if event["worker"] == worker][-1])

    def kill(self, worker: str) -> None:
        os.kill(self.pid(worker), signal.SIGKILL)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event["data"] for event in _lines(self.out / "events.jsonl") if event["name"] == name]

    def survived(self, name: str) -> list[dict[str, Any]]:
        """Without what was undone when the run went back to a checkpoint."""
        return [event.data for event in surviving(read_events(self.out / "events.jsonl")) if event.name == name]

    def until_it_trains(self, step: int) -> None:
        """Waits until the trainer has got the batch of this step."""
        while not any(event["step"] >= step for event in self.events("batch.ready")):
            assert self.process.poll() is None, "the run ended before"
            time.sleep(0.01)

    def rows(self) -> list[dict[str, Any]]:
        return _lines(self.out / "metrics.jsonl")

    def finish(self) -> dict[str, Any]:
        """The summary of a run that reached its end, with books that balance."""
        self.process.communicate(timeout=250)
        assert self.process.returncode == 0
        summary: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        assert (summary["exit_reason"], summary["steps"]) == ("completed", self.steps)
        trained = [group for batch in self.survived("batch.ready") for group in batch["groups"]]
        assert len(trained) == len(set(trained)) == self.steps * GROUPS  # nothing twice
        assert set(trained) == set(range(len(trained)))  # nothing left out
        tasks, attempts = summary["tasks"], summary["attempts"]
        assert tasks["trained"] == len(trained) and tasks["failed"] == 0
        assert attempts["trained"] == len(trained) * MEMBERS
        assert attempts["open"] <= tasks["open"] * MEMBERS
        return summary


def _lines(path: Path) -> list[dict[str, Any]]:
    """The last line may be half written."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def children_of(pid: int) -> set[int]:
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone by now
            continue
        if parent == pid:
            found.add(int(status.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_run_goes_on_when_its_engine_and_then_its_host_are_killed(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", 10, "rollout.isolation=process", "rollout.environments_per_process=8")
    run.until_step(3)
    run.kill("engine")
    run.until_step(6)
    engine_died = run.rows()[-1]
    assert engine_died["ledger/attempt/infra-failed"] == 0  # its trajectories went on from their tokens
    assert engine_died["ledger/attempt/aborted"] == 0
    environments = children_of(run.pid("host-0"))
    assert environments
    run.kill("host-0")
    summary = run.finish()
    assert [event["worker"] for event in run.events("worker.died")] == ["engine", "host-0"]
    assert [event["worker"] for event in run.events("worker.restarted")] == ["engine", "host-0"]
    assert 0 < summary["attempts"]["infra-failed"] <= 16  # what the host was playing
    assert not any(alive(pid) for pid in environments)
    assert all(row["tokens/generated"] >= 0 and row["time/recompute"] >= 0 for row in run.rows())


@pytest.mark.slow
def test_a_trainer_that_is_killed_in_a_step_goes_back_to_its_checkpoint_without_engines_and_hosts(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "run", 8, "checkpoint.every=2", "runtime.hosts=2")
    run.until_step(5)
    run.until_it_trains(5)
    others = {name: run.pid(name) for name in ("engine", "host-0", "host-1")}
    first = run.pid("trainer")
    run.kill("trainer")
    run.until_step(8)
    assert {name: run.pid(name) for name in others} == others and all(alive(pid) for pid in others.values())
    summary = run.finish()
    assert run.pid("trainer") != first
    started = [event["worker"] for event in run.events("worker.ready")]
    assert sorted(started) == ["engine", "host-0", "host-1", "trainer", "trainer"]
    assert [event["worker"] for event in run.events("worker.died")] == ["trainer"]
    assert [(event["version"], event["history"]) for event in run.events("run.back")] == [(4, 1)]
    names = [event["name"] for event in _lines(run.out / "events.jsonl")]
    back = names.index("run.back")
    assert names.index("weights.commit", back) < names.index("episode.begin", back), "engines go back first"
    assert [row["step"] for row in run.rows() if "lr" in row] == list(range(8))
    (undone,) = run.events("attempts.undone")
    assert summary["attempts"]["aborted"] >= undone["aborted"] > 0 and undone["tokens"] >= undone["ends"]["trained"] > 0
    assert problems(run.out) == []


def test_an_environment_that_hangs_does_not_outlive_its_host() -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    environment = os.pidfd_open(pid)
    host.kill()
    host.wait()
    host.stdout.close()
    gone, _, _ = select.select([environment], [], [], 60)
    os.close(environment)
    assert gone


@pytest.mark.slow
def test_one_hung_environment_of_64_costs_its_own_slot_and_no_more() -> None:
    """Every other episode is played to its end, on 63 slots, while one hangs in a process of its own."""

    async def main(clock: Clock) -> None:
        pool = EnvironmentPool(EnvironmentFactory({"Patient": maker(Patient)}), per_process=1)
        stage = Stage(clock, proxy_of([NullEngine()]), pool, NullDialogue(), NullScorer(), RolloutConfig())
        dispatcher = Dispatcher()
        host: EnvHost
        link = dispatcher.attach(lambda packet: host.link.receive(packet), 64)
        host = EnvHost(stage, link.receive)
        reports: list[Report] = []
        all_others = asyncio.Event()

        def heard(_: Lease, report: Report) -> None:
            reports.append(report)
            if len(reports) == 3 * 64 - 1:
                all_others.set()

        playing = asyncio.ensure_future(host.run())
        for seed in range(3 * 64):
            task = Task(f"Patient/{seed}", "Patient", seed)
            dispatcher.submit([Lease(str(seed), seed, 0, 0, task, seed, Sampling(), 0)], heard)
        await all_others.wait()
        assert Counter(report.trajectory.outcome for report in reports) == {Outcome.FINISHED: 3 * 64 - 1}
        assert (dispatcher.playing, dispatcher.free) == (1, 63)
        assert [(wait.who, wait.what) for wait in clock.waiting()] == [("episode 0", "environment step 1")]
        assert pool.killed == 0
        await pool.close()
        playing.cancel()

    run_wall(main)
