"""`one_off`: train on the last batch while the next one is generated, all of it one version behind.

    generate |= batch 0, v0 =|= batch 1, v0 =|= batch 2, v1 =|= batch 3, v2 =
    train                    |==== step 0 ===|==== step 1 ===|==== step 2 ===

A step takes its batch first and gives the engines new weights after it: the order of the RollArt paper. At alpha = 1
nothing is in flight at an update, because every group that was admitted has just been consumed. `rollart` with
`sync_point: after_batch` runs this loop at any alpha of 1 or more.
"""

from __future__ import annotations

import asyncio

from rollweave.pipelines.loop import Parts
from rollweave.trajectory import Batch


async def one_off(parts: Parts, first: int, last: int) -> None:
    await parts.weights.commit(first)
    parts.scheduler.advance(first)
    for step in range(first, last):
        batch = await _next_batch(parts, step)
        with parts.phase("sync_exposed", step):
            await parts.weights.commit(step)
        parts.scheduler.advance(step)
        parts.start_evaluation(step)
        with parts.phase("train", step):
            metrics = await parts.trainer.train_step(batch)
        with parts.phase("sync_exposed", step):
            await parts.weights.publish(step + 1)
        if await parts.finish_step(batch, metrics):
            break
    await parts.finish_run()


async def _next_batch(parts: Parts, step: int) -> Batch:
    """Engines pull the weights that they are to have next while their last answers of this batch come in."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(parts.weights.stage(step), name=f"stage {step}")
        with parts.phase("get_batch", step):
            return await parts.scheduler.get_batch(step)
