"""`sync` and `sync+`: generation and training take turns.

    generate |=================|         |=================|
    train                      |========|                   |========|

In `sync`, what most frameworks do today, the hosts also keep a barrier: all environments take each turn together.
In `sync+` every episode runs at its own pace. The loop is the same.

Because the phases take turns, a job that runs this loop leaves each pool idle while it works on the other: other jobs
may have it meanwhile (`parts.turn`, see docs/cluster-daemon.md).
"""

from __future__ import annotations

from rollweave.pipelines.loop import Parts


async def sync(parts: Parts, first: int, last: int) -> None:
    for step in range(first, last):
        await parts.turn("rollout", partly=not parts.evaluates(step))
        with parts.phase("sync_exposed", step):
            await parts.weights.commit(step)
        parts.scheduler.advance(step)  # at alpha = 0: admits exactly the groups of this step
        with parts.phase("get_batch", step):
            batch = await parts.get_batch(step)
        parts.start_evaluation(step)  # the engines are idle while the trainer works
        await parts.turn("train", batch.sampled_tokens)
        with parts.phase("train", step):
            metrics = await parts.trainer.train_step(batch)
        with parts.phase("sync_exposed", step):
            await parts.weights.publish(step + 1)
        if await parts.finish_step(batch, metrics):
            break
    await parts.finish_run()
