"""The reward of the bench: it waits, as a judge would, and its value is in the trajectory."""

from __future__ import annotations

import asyncio
import os

from rollweave import Trajectory


async def score(trajectory: Trajectory) -> float:
    await asyncio.sleep(float(os.environ.get("BENCH_SECONDS", "0.1")))
    return float(trajectory.turns[-1].text) / 8
