"""`rollart`: rollout never waits for training, and training only for data.

While step n trains, environments go on with version n, at most `alpha` versions ahead of the trainer; the
scheduler's admission rule sees to that. New weights travel beside both: the trainer goes on with the next batch as
soon as it has handed them over, and engines take them between two of their steps. At an update, what is in flight
keeps its tokens and goes on under the new weights.

    generate |=== v0 ===|=== v0 ==|=== v1 ====|=== v2 ===
    weights                        \\ v1       \\ v2
    train               |= step 0 =|= step 1 =|= step 2 =

At alpha = 0 nothing may run ahead: each batch waits for engines of the newest version, and this loop equals `sync+` bit
for bit.
"""

from __future__ import annotations

import asyncio

from rollweave.pipelines.loop import Parts


async def rollart(parts: Parts, first: int, last: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        updates = tasks.create_task(_update_engines(parts, first, last), name="updates")
        for step in range(first, last):
            with parts.phase("sync_exposed", step):
                await parts.weights.reached(step - parts.scheduler.bound.whole)  # older data would not be consumed
            with parts.phase("get_batch", step):
                batch = await parts.scheduler.get_batch(step)  # and refill rollout, up to alpha steps ahead
            with parts.phase("train", step):
                metrics = await parts.trainer.train_step(batch)
            with parts.phase("sync_exposed", step):
                await parts.weights.publish(step + 1)
            if await parts.finish_step(batch, metrics):
                break
        if not parts.stopping:
            await parts.weights.reached(min(parts.version, last - 1))  # an update is not cut in two
        updates.cancel()
    await parts.finish_run()


async def _update_engines(parts: Parts, first: int, last: int) -> None:
    """Each version but the last, from which nothing is trained, as soon as the trainer has it, beside training; an
    evaluation under way ends first."""
    for version in range(first, last):
        await parts.weights.published(version)
        await parts.weights.stage(version)
        await parts.settle_evaluation()
        await parts.weights.commit(version)  # suspend, swap, resume; caches are rebuilt from tokens
        if parts.done:
            return
        parts.scheduler.advance(version)
        parts.start_evaluation(version)
