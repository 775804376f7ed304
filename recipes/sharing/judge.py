"""The reward of job.yaml: a short episode is better, says a judge that takes its time."""

from __future__ import annotations

import asyncio

from rollweave import Trajectory

SECONDS = 1.0


async def short(trajectory: Trajectory) -> float:
    await asyncio.sleep(SECONDS)
    return 1.0 / len(trajectory.turns)
