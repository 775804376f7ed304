"""Drive: runs a pipeline until it ends, somebody has seen enough, or something fails. Each way a checkpoint is left.

A session drives real machinery with it, a replay the recording of one.
"""

from __future__ import annotations

import asyncio

from rollweave.config.job import Job
from rollweave.observability.events import Emitter
from rollweave.pipelines.assemble import pipeline
from rollweave.pipelines.parts import Parts


class Drive:
    def __init__(self, job: Job, parts: Parts, recorder: Emitter) -> None:
        self._job = job
        self._parts = parts
        self._recorder = recorder
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """From the version that `parts` hold to the last step of the job."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._running = tasks.create_task(self._pipeline(), name="pipeline")
                await asyncio.wait([self._running])
        except BaseException as error:
            if not self._parts.stopping:
                self._recorder.emit("run.failed", error=str(error))
                await self._parts.rescue()
            raise
        else:
            await self._parts.save_checkpoint()
        finally:
            self._parts.scheduler.close()

    async def _pipeline(self) -> None:
        await pipeline(self._job)(self._parts, self._parts.version, self._job.training.steps)

    def stop(self) -> None:
        """End in order: what is being trained is finished, what is being played is left to the next session."""
        self._recorder.emit("run.stop")
        if self._parts.stop() and self._running is not None:
            self._running.cancel()
