"""`sync` and `sync+`: generation and training alternate.

    generate |=================|         |=================|
    train                      |========|                   |========|

In `sync`, what most frameworks do today, the hosts also keep a barrier: all environments take each turn together.
In `sync+` every episode runs at its own pace. The loop is the same.

Because the phases alternate, a job that runs this loop leaves each pool idle while it uses the other one. Other jobs
may use it meanwhile (`loop.permits`, see docs/daemon.md).
"""

from __future__ import annotations

from rollweave.pipelines.loop import Loop


async def sync(loop: Loop, first: int, last: int) -> None:
    for step in range(first, last):
        await loop.permits.take("rollout", step, partly=not loop.evaluation.due(step))
        with loop.phase("sync_exposed", step):
            await loop.weights.commit(step)
        loop.scheduler.advance(step)  # at alpha = 0: admits exactly the groups of this step
        with loop.phase("get_batch", step):
            async with loop.permits.making_room(step):
                batch = await loop.get_batch(step)
        loop.evaluation.start_if_due(step)  # the engines are idle while the trainer works
        await loop.permits.take("train", step, batch.sampled_tokens)
        with loop.phase("train", step):
            metrics = await loop.train(batch)
        with loop.phase("sync_exposed", step):
            await loop.weights.publish(step + 1)
        if await loop.finish_step(batch, metrics):
            break
    await loop.finish_run()
