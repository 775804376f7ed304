"""Weights on their way: stores, the checked protocol, taking turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from rollweave.clock import Clock, DeadlineExceeded, run_virtual
from rollweave.cluster.placement import TakingTurns
from rollweave.engines.protocol import Request, Sampling
from rollweave.observability.events import MemoryRecorder
from rollweave.simulation.durations import constant
from rollweave.simulation.engine import SimulatedEngine
from rollweave.simulation.trainer import SimulatedTrainer
from rollweave.trajectory import Batch
from rollweave.weights.store import MemoryStore, SharedMemoryStore, WeightStore
from rollweave.weights.sync import WeightMismatch, WeightSync


@pytest.fixture(params=["memory", "shared"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WeightStore:
    return MemoryStore() if request.param == "memory" else SharedMemoryStore(tmp_path)


def test_what_is_pulled_is_what_was_pushed_even_after_the_next_step(store: WeightStore) -> None:
    live = {"layer.weight": torch.arange(6.0).reshape(2, 3)}
    before = store.push(1, live)
    live["layer.weight"].add_(1.0)  # the trainer goes on
    after = store.push(2, live)
    assert store.pull(1)["layer.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert store.pull(2)["layer.weight"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert before != after


def test_only_the_last_two_versions_are_kept(store: WeightStore) -> None:
    for version in range(4):
        store.push(version, {"w": torch.full((1,), float(version))})
    assert float(store.pull(3)["w"]) == 3.0
    with pytest.raises((KeyError, FileNotFoundError)):
        store.pull(1)


class Forgetful(SimulatedEngine):
    async def prepare(self, version: int) -> str:
        return "something else"


class Stuck(SimulatedEngine):
    async def prepare(self, version: int) -> str:
        await asyncio.get_running_loop().create_future()
        return ""


def engine(kind: type[SimulatedEngine], clock: Clock) -> SimulatedEngine:
    return kind(clock, constant(1.0), lambda rng: 4)


def sync(kind: type[SimulatedEngine], clock: Clock) -> WeightSync:
    trainer = SimulatedTrainer(clock, constant(1.0), 0)
    return WeightSync(trainer, [engine(kind, clock)], clock, MemoryRecorder(), timeout=9.0)


def test_an_engine_that_echoes_other_weights_stops_the_run() -> None:
    with pytest.raises(WeightMismatch, match="something else"):
        run_virtual(lambda clock: sync(Forgetful, clock).publish(1))


def test_an_engine_that_never_gets_its_weights_is_named_after_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="version 1 to reach all engines"):
        run_virtual(lambda clock: sync(Stuck, clock).publish(1))


def test_a_commit_changes_the_version_of_what_is_sampled_next_and_of_nothing_before() -> None:
    async def main(clock: Clock) -> list[int | None]:
        one = engine(SimulatedEngine, clock)
        weights = WeightSync(SimulatedTrainer(clock, constant(1.0), 0), [one], clock, MemoryRecorder(), 9.0)
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(one.generate(Request("a#1", "a", [1], 0, Sampling())))
            await clock.sleep(2.5)
            await weights.publish(1)
            await weights.commit(1)
        return [span.version for span in answer.result().spans for _ in span.tokens]

    assert run_virtual(main) == [0, 0, 1, 1]


def test_when_taking_turns_no_token_is_drawn_while_the_trainer_works() -> None:
    class Training(SimulatedTrainer):
        async def train_step(self, batch: Batch) -> dict[str, float]:
            await self._clock.sleep(50.0)
            return {}

    async def main(clock: Clock) -> tuple[float, float]:
        one = engine(SimulatedEngine, clock)
        trainer = TakingTurns(Training(clock, constant(1.0), 0), [one])
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(one.generate(Request("a#1", "a", [1], 0, Sampling())))
            await clock.sleep(1.5)
            await trainer.train_step(Batch(0, []))
            trained = clock.now()
        assert len(answer.result().spans[0].tokens) == 4
        return trained, clock.now()

    trained, answered = run_virtual(main)
    assert trained == 51.5
    assert answered > 53.0, "two tokens were still to come when the trainer began"
