"""Engines join and leave a running job by order: the command, and the driver that carries it out."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from puppets import PuppetEngine
from rollweave.clock import Clock, run_virtual
from rollweave.config.load import load_job
from rollweave.errors import ConfigError
from rollweave.observability.events import MemoryRecorder
from rollweave.runs.folder import RunFolder
from rollweave.runs.scale import order_engines
from rollweave.runtimes.layout import EngineSeat
from rollweave.runtimes.orders import follow_orders, write_order
from rollweave.runtimes.ray_clients import WorkerHandle
from rollweave.runtimes.ray_keepers import EngineTeam
from rollweave.runtimes.resources import ClusterNode
from test_restarts import crew_of


def test_a_team_grows_and_shrinks_and_names_are_never_used_again(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        recorder = MemoryRecorder(clock.now)
        crew = crew_of(clock, recorder)
        started: list[PuppetEngine] = []

        async def spawn(name: str, seat: EngineSeat, spare_for: ClusterNode | None) -> WorkerHandle:
            started.append(PuppetEngine(name))
            return cast(WorkerHandle, started[-1])

        async with asyncio.TaskGroup() as tasks:
            team = EngineTeam(crew, [EngineSeat(1, pool="a"), EngineSeat(1, pool="b")], spawn, tasks)
            await team.begin()
            await team.start()
            team.run()
            following = tasks.create_task(follow_orders(tmp_path, team.scale, clock))
            serving = lambda: [entry.id for entry in crew.fleet.serving()]  # noqa: E731
            assert serving() == ["a-0/1", "b-0/1"]
            for wanted, expected in [
                (3, ["a-0/1", "b-0/1", "b-1/1", "b-2/1"]),
                (1, ["a-0/1", "b-0/1"]),
                (2, ["a-0/1", "b-0/1", "b-3/1"]),
            ]:
                write_order(tmp_path, {"b": wanted})
                await clock.sleep(3.0)
                assert serving() == expected
            gone = [engine for engine in started if engine.name in ("b-1", "b-2")]
            assert gone and all(engine.dead.is_set() for engine in gone), "processes and their spares are ended"
            following.cancel()
            team.stop()
        assert [event.data["engines"] for event in recorder.named("fleet.scale")] == [3, 1, 2]

    async def run(clock: Clock) -> None:
        await main(clock)

    run_virtual(run)


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """A run that seems to be running: this process works in it."""
    (tmp_path / "job.yaml").write_text(
        "model: tiny\nenvironment: frozen_lake\n"
        "cluster: {pools: [{name: a, device: CPU, count: 1, role: rollout}, {name: t, device: CPU, count: 1, "
        "role: train}]}\n"
    )
    folder = RunFolder.choose(load_job(tmp_path / "job.yaml"), tmp_path / "run")
    folder.create(load_job(tmp_path / "job.yaml"))
    (folder.path / "lock").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    yield folder.path


def test_an_order_names_a_pool_that_generates(run_folder: Path) -> None:
    assert list(order_engines(run_folder, ["a=3"])) == [
        f"asked for 3 engines in pool a: see `rollweave cluster {run_folder}`"
    ]
    assert list(order_engines(run_folder, ["rollout=2"])), "the only pool of that role"
    assert json.loads((run_folder / "engines.json").read_text()) == {"a": 2}


@pytest.mark.parametrize(
    ("order", "said"),
    [("t=2", "no pool generates under this name"), ("a=0", "at least one engine"), ("a", "expected POOL=ENGINES")],
)
def test_an_order_that_makes_no_sense_is_refused(run_folder: Path, order: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        list(order_engines(run_folder, [order]))
    assert not (run_folder / "engines.json").exists()


def test_a_run_that_is_over_takes_no_orders(run_folder: Path) -> None:
    (run_folder / "lock").unlink()
    with pytest.raises(ConfigError, match="is not running"):
        list(order_engines(run_folder, ["a=2"]))
