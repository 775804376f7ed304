"""The driver's and the hosts' ends of the Ray workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rollweave.clock import Clock
from rollweave.cluster.ray_handle import WorkerHandle
from rollweave.config.job import Deadlines
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.rollout.link import Packet
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch


class RayEngine:
    """An `Engine` in another process. Requests of one tick travel together, and so do the answers of one step."""

    def __init__(self, worker: WorkerHandle, client: str) -> None:
        self._worker = worker
        self._client = client
        self._answers: dict[str, asyncio.Future[Completion]] = {}
        self._requests: list[Request] = []
        self._released: list[str] = []
        self._flush_scheduled = False

    async def run(self) -> None:
        """Bring answers back, until cancelled."""
        while True:
            for completion in await self._worker.call("collect", self._client):
                answer = self._answers.pop(completion.id, None)
                if answer is not None and not answer.done():
                    answer.set_result(completion)

    async def generate(self, request: Request) -> Completion:
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._answers[request.id] = answer
        self._requests.append(request)
        self._schedule_flush()
        return await answer

    def abort(self, request_id: str) -> None:
        self._worker.tell("abort", request_id)

    def release(self, trajectory: str) -> None:
        self._released.append(trajectory)
        self._schedule_flush()

    async def suspend(self) -> None:
        await self._worker.call("suspend")

    async def resume(self) -> None:
        await self._worker.call("resume")

    async def prepare(self, version: int) -> str:
        checksum: str = await self._worker.call("prepare", version)
        return checksum

    async def commit(self, version: int) -> None:
        await self._worker.call("commit", version)

    async def stats(self) -> EngineStats:
        stats: EngineStats = await self._worker.call("stats")
        return stats

    async def close(self) -> None:
        pass

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._released:
            self._worker.tell("release", self._released)
            self._released = []
        if self._requests:
            self._worker.tell("add", self._client, self._requests)
            self._requests = []


class RayTrainer:
    """A `Trainer` in another process."""

    def __init__(self, worker: WorkerHandle, clock: Clock, deadlines: Deadlines) -> None:
        self._worker = worker
        self._clock = clock
        self._deadlines = deadlines

    async def train_step(self, batch: Batch) -> Metrics:
        with self._clock.wait("driver", f"train step {batch.step}", self._deadlines.train_step):
            metrics: Metrics = await self._worker.call("train_step", batch)
        return metrics

    async def publish(self, version: int) -> str:
        checksum: str = await self._worker.call("publish", version)
        return checksum

    async def save(self, folder: Path, driver: str) -> None:
        with self._clock.wait("driver", f"checkpoint {folder.name}", self._deadlines.train_step):
            await self._worker.call("save", folder, driver)

    async def load(self, folder: Path) -> None:
        await self._worker.call("load", folder)

    async def close(self) -> None:
        pass


class RayTransport:
    """Packets from the driver to one host."""

    def __init__(self, worker: WorkerHandle) -> None:
        self._worker = worker

    def __call__(self, packet: Packet[Any]) -> None:
        self._worker.tell("receive", packet)
