"""Every kind of trainer keeps the contract of trainers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.world.durations import constant
from tests.world.trainer import SimulatedTrainer

from contracts.ray_workers import RayWorkers
from contracts.trainer import BEHAVIOURS, CHECKPOINTS, Behaviour, Main, check_trainer
from rollweave.clock import Clock, run_virtual, run_wall
from rollweave.config.control import Deadlines
from rollweave.config.hardware import DEVICES, Constants
from rollweave.config.models import MODELS
from rollweave.config.training import TrainingConfig
from rollweave.observability.events import MemoryRecorder
from rollweave.runtimes.inline import InlineTrainer
from rollweave.runtimes.ray_clients import RayTrainer, Restarts, WorkerHandle
from rollweave.runtimes.ray_nodes import NodeCarrier
from rollweave.simulation.costs.training import TrainingCosts
from rollweave.simulation.hardware.machines import GpuTrainer
from rollweave.training.protocol import Trainer
from rollweave.training.trainer import TorchTrainer
from rollweave.weights.store import MemoryStore
from training_data import tiny_policy


class OnVirtualClock:
    def run(self, main: Main) -> None:
        run_virtual(main)


class Simulated(OnVirtualClock):
    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Trainer]:
        yield SimulatedTrainer(clock, constant(3.0), seed=1)


class GpuModel(OnVirtualClock):
    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Trainer]:
        costs = TrainingCosts(MODELS["qwen3-8b"], [(DEVICES["H800"], 8)], Constants())
        yield GpuTrainer(clock, costs, 1.0)


@dataclass
class Torch(OnVirtualClock):
    policy: Path

    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Trainer]:
        core = TorchTrainer(self.policy, TrainingConfig(learning_rate=1e-3), seed=1)
        yield InlineTrainer(lambda: core, MemoryStore(), clock, step_seconds=2.0)


@dataclass
class Ray:
    """The client of a torch trainer in a process of its own."""

    workers: RayWorkers

    def run(self, main: Main) -> None:
        run_wall(main)

    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Trainer]:
        restarts = Restarts(MemoryRecorder())
        yield RayTrainer(
            self.workers.trainer(),
            clock,
            Deadlines(),
            restarts,
            lambda node: NodeCarrier(None),
            lambda worker, call: call,
            _no_other,
        )


@dataclass
class Sharded(Ray):
    """The client of a trainer of two ranks."""

    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Trainer]:
        group, restarts = self.workers.trainer_group(), Restarts(MemoryRecorder())
        await group.call("ready")
        carry, reachable = (lambda node: NodeCarrier(None)), (lambda worker, call: call)
        yield RayTrainer(group, clock, Deadlines(), restarts, carry, reachable, _no_other)


async def _no_other() -> WorkerHandle:
    raise AssertionError("its trainer does not die")


def name_of(behaviour: Behaviour) -> str:
    return behaviour.__name__


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=name_of)
@pytest.mark.parametrize("kind", [Simulated(), GpuModel()], ids=["simulated", "gpu-model"])
def test_a_simulated_trainer_keeps_the_contract(kind: OnVirtualClock, behaviour: Behaviour, tmp_path: Path) -> None:
    check_trainer(behaviour, kind, tmp_path)


@pytest.mark.parametrize("behaviour", [*BEHAVIOURS, *CHECKPOINTS], ids=name_of)
def test_the_torch_trainer_keeps_the_contract(behaviour: Behaviour, policy: Path, tmp_path: Path) -> None:
    check_trainer(behaviour, Torch(policy), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", [*BEHAVIOURS, *CHECKPOINTS], ids=name_of)
def test_a_trainer_on_ray_keeps_the_contract(behaviour: Behaviour, ray_workers: RayWorkers, tmp_path: Path) -> None:
    check_trainer(behaviour, Ray(ray_workers), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", [*BEHAVIOURS, *CHECKPOINTS], ids=name_of)
def test_a_trainer_of_two_ranks_keeps_the_contract(
    behaviour: Behaviour, ray_workers: RayWorkers, tmp_path: Path
) -> None:
    check_trainer(behaviour, Sharded(ray_workers), tmp_path)
