"""A vLLM for tests. Starting one takes 20 s, so that all behaviours of the contract share one, and one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.engine import Main
from rollweave.clock import Clock
from rollweave.config.control import InFlight
from rollweave.config.engines import VllmEngineConfig
from rollweave.engines.protocol import Engine
from rollweave.engines.vllm.engine import VllmEngine
from rollweave.errors import EngineGone
from rollweave.weights.store import MemoryStore
from torch_engine_reference import TOKENIZER, VOCABULARY, random_model

SMALL = VllmEngineConfig(type="vllm", slots=8, prefill_tokens=256, kv_cache_mb=64)
MAX_CONTEXT = 1024
KIND = "qwen3"  # its head is tied to the embedding


def folder_of(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@dataclass
class Vllm:
    """One engine, which runs between behaviours as well."""

    engine: VllmEngine
    store: MemoryStore
    runner: asyncio.Runner
    in_flight: InFlight = "recompute"
    draws_tokens: bool = True
    stop_tokens: tuple[int, ...] = tuple(range(0, VOCABULARY, 2))
    long_answer: int = 300
    """It draws on the wall clock, while the test looks."""
    tick: float = 0.0

    def run(self, main: Main) -> None:
        self.runner.run(main(Clock()))

    @asynccontextmanager
    async def started(self, clock: Clock) -> AsyncIterator[Engine]:
        self.engine.in_flight = self.in_flight
        yield self.engine

    async def publish(self, version: int) -> None:
        self.store.push(version, random_model(KIND, seed=version).state_dict())


@contextmanager
def running_vllm(folder: Path) -> Iterator[Vllm]:
    pytest.importorskip("vllm", reason="vLLM is not installed: .ci/run makes an environment for it")
    store = MemoryStore(0.125)
    with asyncio.Runner() as runner:
        engine = runner.run(VllmEngine.start(folder, SMALL, MAX_CONTEXT, "recompute", store))
        watching = runner.get_loop().create_task(engine.run())
        try:
            yield Vllm(engine, store, runner)
        finally:
            watching.cancel()
            runner.run(_ended(watching))


async def _ended(watching: asyncio.Task[None]) -> None:
    result = (await asyncio.gather(watching, return_exceptions=True))[0]
    assert isinstance(result, asyncio.CancelledError | EngineGone)
