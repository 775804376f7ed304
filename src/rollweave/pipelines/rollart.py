"""`rollart`: rollout and training run at the same time. Training waits for data, rollout only for the staleness bound.

While step n trains, episodes go on, at most `alpha` versions ahead of the trainer; the scheduler's admission rule
(`rollout/staleness.py`) keeps that bound. New weights travel beside both: the trainer goes on with the next batch as
soon as it has pushed them to the store, and engines take them between two of their steps. At an update, episodes under
way keep their tokens and go on under the new weights.

    generate |=== v0 ===|=== v0 ==|=== v1 ====|=== v2 ===
    weights                        \\ v1       \\ v2
    train               |= step 0 =|= step 1 =|= step 2 =

At alpha = 0 nothing may run ahead: each batch waits for engines of the newest version, and this loop equals `sync+` bit
for bit.
"""

from __future__ import annotations

import asyncio

from rollweave.pipelines.loop import Loop


async def rollart(loop: Loop, first: int, last: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        updates = tasks.create_task(_update_engines(loop, first, last), name="updates")
        for step in range(first, last):
            with loop.phase("sync_exposed", step):
                await loop.weights.reached(step - loop.scheduler.bound.whole)  # older data is too stale
            with loop.phase("get_batch", step):
                batch = await loop.get_batch(step)  # and refill rollout, up to alpha steps ahead
            with loop.phase("train", step):
                metrics = await loop.train(batch)
            with loop.phase("sync_exposed", step):
                await loop.weights.publish(step + 1)
            if await loop.finish_step(batch, metrics):
                break
        if not loop.state.stopping:
            await loop.weights.reached(min(loop.state.version, last - 1))  # an update is not cut in two
        updates.cancel()
    await loop.finish_run()


async def _update_engines(loop: Loop, first: int, last: int) -> None:
    """Give the engines each version as soon as the trainer has published it, beside training. An evaluation under way
    ends first. `finish_run` brings the last version, from which nothing is trained."""
    for version in range(first, last):
        await loop.weights.published(version)
        await loop.weights.stage(version)
        await loop.evaluation.settle()
        await loop.weights.commit(version)  # suspend, swap, resume; caches are rebuilt from tokens
        if loop.state.done:
            return
        loop.scheduler.advance(version)
        loop.evaluation.start_if_due(version)
