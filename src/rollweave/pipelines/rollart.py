"""`rollart`: rollout never waits for training, and training only for data.

While step n trains, environments go on with version n, at most `alpha` versions ahead of the trainer; the
scheduler's admission rule sees to that. At an update, what is in flight keeps its tokens and goes on under the
new weights.

    generate |=== v0 ===|=== v0 ===|=== v1 ===|=== v2 ===
    train               |= step 0 =|= step 1 =|= step 2 =

At alpha = 0 nothing may run ahead, and this loop equals `sync+` bit for bit.
"""

from __future__ import annotations

from rollweave.pipelines.parts import Parts


async def rollart(parts: Parts, first: int, last: int) -> None:
    for step in range(first, last):
        with parts.phase("sync_exposed", step):
            await parts.weights.commit(step)  # suspend, swap, resume; caches are rebuilt from tokens
        parts.scheduler.advance(step)
        parts.start_evaluation(step)
        with parts.phase("get_batch", step):
            batch = await parts.scheduler.get_batch(step)  # and refill rollout, up to alpha steps ahead
        with parts.phase("train", step):
            metrics = await parts.trainer.train_step(batch)
        with parts.phase("sync_exposed", step):
            await parts.weights.publish(step + 1)
        if await parts.finish_step(batch, metrics):
            break
    await parts.finish_run()
