"""A sharded trainer on Ray: when one of its processes dies all of it is gone at once, and another can be made."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest

from contracts.ray_workers import RayWorkers
from rollweave.clock import Clock, run_wall
from rollweave.errors import UntrainableBatch, WorkerDied
from rollweave.runtimes.ray_group import TrainerGroup
from rollweave.trajectory import Batch
from test_failures import Run, alive
from training_data import batch

pytestmark = pytest.mark.slow

READY = re.compile(r"rank \d+ of \d+ is ready, process (\d+)")


def pid(group: TrainerGroup, rank: int) -> int:
    return int(READY.findall(group.ranks[rank].log.read_text())[-1])


async def train(group: TrainerGroup, step: int) -> None:
    data = batch(step, groups=4, step=step, version=step)
    await group.call("begin", step, False)
    await group.call("accumulate", data.groups)
    await group.call("finish")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_of_a_rank_is_that_of_the_trainer(ray_workers: RayWorkers, rank: int) -> None:
    async def main(clock: Clock) -> None:
        group = ray_workers.new_group()
        await group.call("ready")
        await train(group, 0)
        training = asyncio.ensure_future(train_until_dead(group))
        await asyncio.sleep(0.5)
        os.kill(pid(group, rank), signal.SIGKILL)
        died = time.monotonic()
        with pytest.raises(WorkerDied, match=f"the trainer of 2 ranks died; rank {rank}") as death:
            await training
        assert time.monotonic() - died < 2.0, "measured: 0.08 s"
        assert death.value.worker == "trainer"
        with pytest.raises(WorkerDied):  # the other one is gone too
            await group.call("begin", 1, False)
        successor = ray_workers.new_group()
        await successor.call("ready")
        await train(successor, 0)
        successor.end()

    run_wall(main)


async def train_until_dead(group: TrainerGroup) -> None:
    for step in range(1, 10_000):
        await train(group, step)


def test_a_rank_that_stands_still_is_given_up_at_the_timeout(ray_workers: RayWorkers) -> None:
    async def main(clock: Clock) -> None:
        group = ray_workers.new_group(rank_timeout=5.0)
        await group.call("ready")
        stopped = pid(group, 1)
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match="rank 1 does not answer"):
            await train(group, 0)
        async with asyncio.timeout(10):
            while alive(stopped):  # noqa: ASYNC110 (a process, of which no event tells)
                await asyncio.sleep(0.1)

    run_wall(main)


def test_what_all_ranks_refuse_leaves_them_alive(ray_workers: RayWorkers) -> None:
    async def main(clock: Clock) -> None:
        group = ray_workers.trainer_group()
        await group.call("ready")
        await group.call("begin", 0, False)
        with pytest.raises(UntrainableBatch):
            await group.call("accumulate", Batch(0, []).groups)
        await train(group, 0)

    run_wall(main)


def test_a_run_goes_back_to_its_checkpoint_when_a_rank_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", 7, "checkpoint.every=2", "training.ranks=2", "training.packing=true")
    run.until_step(5)
    log = run.out / "logs" / "trainer-1.log"
    os.kill(int(READY.findall(log.read_text())[-1]), signal.SIGKILL)
    run.finish()
    assert [event["version"] for event in run.events("run.back")] == [4]
    assert len(READY.findall(log.read_text())) == 2
