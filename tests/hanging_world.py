"""The world of test_failures.py: its episodes take three steps, but the one of seed 0 hangs in its first."""

from __future__ import annotations

import signal
from typing import Any


class Patient:
    def reset(self, seed: int) -> str:
        self.seed, self.steps = seed, 0
        return "ready"

    def step(self, action: str) -> Any:
        while self.seed == 0:
            signal.pause()
        self.steps += 1
        return "on", 1.0, self.steps == 3


HOST = """
import asyncio, sys
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.registry import EnvironmentFactory, maker
from rollweave.tasks import Task
from tests.hanging_world import Patient

async def host():
    pool = EnvironmentPool(EnvironmentFactory({"Patient": maker(Patient)}), 1)
    environment = pool(Task("t", "Patient", 0))
    await environment.reset(0, {})
    step = asyncio.ensure_future(environment.step("left"))
    await asyncio.sleep(0)
    print(pool.children[0].process.pid, flush=True)
    await step

asyncio.run(host())
"""
"""A program that waits for an environment which hangs in another process."""
