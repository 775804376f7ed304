"""`one_off`: train on the last batch while the next one is generated, all of it one version behind.

    generate |= batch 0, v0 =|= batch 1, v0 =|= batch 2, v1 =|= batch 3, v2 =
    train                    |==== step 0 ===|==== step 1 ===|==== step 2 ===

A step takes its batch first and gives the engines new weights after it: the order of the RollArt paper. At alpha = 1
nothing is in flight at an update, because every group that was admitted has just been consumed. `rollart` with
`sync_point: after_batch` runs this loop at any alpha of 1 or more.
"""

from __future__ import annotations

import asyncio

from rollweave.pipelines.loop import Loop


async def one_off(loop: Loop, first: int, last: int) -> None:
    await loop.weights.commit(first)
    loop.scheduler.advance(first)
    for step in range(first, last):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.weights.stage(step), name=f"stage {step}")  # while the last answers come in
            with loop.phase("get_batch", step):
                batch = await loop.get_batch(step)
        with loop.phase("sync_exposed", step):
            await loop.weights.commit(step)
        loop.scheduler.advance(step)
        loop.evaluation.start_if_due(step)
        with loop.phase("train", step):
            metrics = await loop.train(batch)
        with loop.phase("sync_exposed", step):
            await loop.weights.publish(step + 1)
        if await loop.finish_step(batch, metrics):
            break
    await loop.finish_run()
