"""The reward of job.yaml: the share of an answer that is vowels, from a judge that takes its time and no core."""

from __future__ import annotations

import asyncio

from rollweave import Trajectory

SECONDS = 0.15


async def vowels(trajectory: Trajectory) -> float:
    await asyncio.sleep(SECONDS)
    answer = trajectory.turns[-1].text
    return sum(character in "aeiou" for character in answer) / max(1, len(answer))
