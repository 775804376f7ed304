"""Every kind of engine keeps the contract of engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from tests.world.durations import constant
from tests.world.engine import SimulatedEngine

from contracts.engine import (
    BEHAVIOURS,
    HANDOVERS,
    UPDATES,
    Behaviour,
    EngineUnderTest,
    Handover,
    Main,
    PairUnderTest,
    check_engine,
    check_pair,
)
from contracts.ray_workers import RayWorkers
from rollweave.clock import Clock, run_virtual, run_wall
from rollweave.config.control import InFlight
from rollweave.config.hardware import DEVICES, Constants
from rollweave.config.models import MODELS
from rollweave.engines.loop import EngineLoop
from rollweave.engines.protocol import Engine
from rollweave.runtimes.ray_clients import RayEngineClient, RayEngineControl, WorkerHandle
from rollweave.simulation.costs.roofline import EngineCosts
from rollweave.simulation.hardware.engine import GpuEngine
from rollweave.simulation.hardware.prefill import PrefillEngine
from rollweave.trajectory import repeat_item
from rollweave.weights.store import MemoryStore
from torch_engine_reference import VOCABULARY, engine_of, random_model

TOKEN_SECONDS = 0.01
HALF_THE_VOCABULARY = tuple(range(0, VOCABULARY, 2))


class Simulated:
    """What the engines of simulations have in common: they know how long their answers are, and need no weights."""

    draws_tokens = True
    stop_tokens = ()
    long_answer = 60
    tick = TOKEN_SECONDS

    def __init__(self, in_flight: InFlight) -> None:
        self.in_flight = in_flight

    def run(self, main: Main) -> None:
        run_virtual(main)

    def make(self, clock: Clock) -> Engine:
        return SimulatedEngine(
            clock, constant(TOKEN_SECONDS), lambda rng: self.long_answer, in_flight=self.in_flight, number=1
        )

    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Engine]:
        yield self.make(clock)

    async def publish(self, version: int) -> None:
        pass


class GpuModel(Simulated):
    draws_tokens = False

    def make(self, clock: Clock) -> Engine:
        script = repeat_item(np.zeros(1, np.int32), self.long_answer)
        costs = EngineCosts(MODELS["qwen3-8b"], DEVICES["H20"], Constants())
        return GpuEngine(clock, costs, lambda request: script, in_flight=self.in_flight)


@dataclass
class Torch:
    """The torch engine behind its loop. Steps take a modelled time, so that their order is the same every time."""

    in_flight: InFlight
    draws_tokens: bool = True
    stop_tokens: tuple[int, ...] = HALF_THE_VOCABULARY
    long_answer: int = 60
    tick: float = TOKEN_SECONDS
    store: MemoryStore = field(default_factory=partial(MemoryStore, 0.125))

    def run(self, main: Main) -> None:
        run_virtual(main)

    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Engine]:
        core = engine_of(random_model("qwen3"), in_flight=self.in_flight)
        loop = EngineLoop(core, self.store, clock, lambda stats: TOKEN_SECONDS)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(loop.run())
            yield loop
            running.cancel()

    async def publish(self, version: int) -> None:
        self.store.push(version, random_model("qwen3", seed=version).state_dict())


class WholeRayEngine(RayEngineClient):
    """What a host and what the driver see of one engine."""

    def __init__(self, worker: WorkerHandle, client: str) -> None:
        super().__init__(worker, client)
        self._control = RayEngineControl(worker, lambda worker, call: call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)


@dataclass
class Ray:
    """The client of a torch engine in a process of its own, which all behaviours share."""

    in_flight: InFlight
    workers: RayWorkers
    draws_tokens: bool = True
    stop_tokens: tuple[int, ...] = HALF_THE_VOCABULARY
    long_answer: int = 600
    """It draws on the wall clock, while the test looks."""
    tick: float = 0.0

    def run(self, main: Main) -> None:
        run_wall(main)

    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Engine]:
        # A name of its own: the worker still waits to be asked for answers by the client before.
        engine = WholeRayEngine(self.workers.engine(self.in_flight), f"contract-{next(_clients)}")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(engine.run())
            yield engine
            running.cancel()

    async def publish(self, version: int) -> None:
        torch.manual_seed(version)
        self.workers.store.push(version, {n: w + 0.02 * torch.randn_like(w) for n, w in self.workers.weights().items()})


_clients = count()

IN_PROCESS: dict[str, Callable[[InFlight], EngineUnderTest]] = {
    "torch": Torch,
    "simulated": Simulated,
    "gpu-model": GpuModel,
}
MODES: tuple[InFlight, ...] = ("recompute", "keep", "restart_turn")


def name_of(value: Any) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=name_of)
@pytest.mark.parametrize("kind", IN_PROCESS)
def test_an_engine_keeps_the_contract(kind: str, behaviour: Behaviour) -> None:
    check_engine(behaviour, IN_PROCESS[kind]("recompute"))


@pytest.mark.parametrize("behaviour", UPDATES, ids=name_of)
@pytest.mark.parametrize("in_flight", MODES)
@pytest.mark.parametrize("kind", IN_PROCESS)
def test_an_engine_updates_as_in_flight_says(kind: str, in_flight: InFlight, behaviour: Behaviour) -> None:
    check_engine(behaviour, IN_PROCESS[kind](in_flight))


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=name_of)
def test_an_engine_on_ray_keeps_the_contract(behaviour: Behaviour, ray_workers: RayWorkers) -> None:
    check_engine(behaviour, Ray("recompute", ray_workers))


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", UPDATES, ids=name_of)
@pytest.mark.parametrize("in_flight", MODES)
def test_an_engine_on_ray_updates_as_in_flight_says(
    in_flight: InFlight, behaviour: Behaviour, ray_workers: RayWorkers
) -> None:
    check_engine(behaviour, Ray(in_flight, ray_workers))


# ------------------------------------------------------------------------------------- prefill and decode engines


class TorchPair(Torch):
    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[tuple[Engine, Engine, object]]:  # type: ignore[override]
        async with super().started(clock) as prefill, super().started(clock) as decode:
            yield prefill, decode, prefill


class GpuModelPair(GpuModel):
    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[tuple[Engine, Engine, object]]:  # type: ignore[override]
        prefill = PrefillEngine(clock, EngineCosts(MODELS["qwen3-8b"], DEVICES["H800"], Constants()))
        yield prefill, self.make(clock), prefill


@dataclass
class RayPair(Ray):
    """Two processes: the KV cache passes from one to the other."""

    long_answer: int = 60

    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[tuple[Engine, Engine, object]]:  # type: ignore[override]
        handles = [self.workers.engine(self.in_flight, name) for name in ("prefill", "decode")]
        prefill, decode = [WholeRayEngine(handle, f"pair-{next(_clients)}") for handle in handles]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(engine.run()) for engine in (prefill, decode)]
            yield prefill, decode, handles[0]
            for task in running:
                task.cancel()


PAIRS: dict[str, Callable[[InFlight], PairUnderTest]] = {"torch": TorchPair, "gpu-model": GpuModelPair}


@pytest.mark.parametrize("behaviour", HANDOVERS, ids=name_of)
@pytest.mark.parametrize("kind", PAIRS)
def test_a_prefill_engine_hands_over_to_a_decode_engine(kind: str, behaviour: Handover) -> None:
    check_pair(behaviour, PAIRS[kind]("recompute"))


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", HANDOVERS, ids=name_of)
def test_a_prefill_engine_hands_over_from_process_to_process(behaviour: Handover, ray_workers: RayWorkers) -> None:
    check_pair(behaviour, RayPair("recompute", ray_workers))
