"""Loop: the parts that a pipeline drives, and what all pipelines do between two steps."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.phases import Phase
from rollweave.pipelines.checkpoints import Checkpoints, RunState
from rollweave.pipelines.feed import Feed
from rollweave.pipelines.journal import Journal
from rollweave.pipelines.permits import PermitGate
from rollweave.rollout.evaluation import Evaluator
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch


@dataclass(slots=True)
class Loop:
    """The scheduler, the trainer and what runs around them. `assemble` makes it, a pipeline drives it."""

    scheduler: RolloutScheduler
    trainer: Trainer
    weights: WeightSync
    journal: Journal
    permits: PermitGate
    evaluation: Evaluator
    checkpoints: Checkpoints
    state: RunState
    feed: Feed | None = None
    """With `training.stream`: what gives the trainer groups as they come."""

    def phase(self, name: Phase, step: int) -> AbstractContextManager[None]:
        self.state.trainer_busy |= name == "train"
        return self.journal.phase(name, step)

    async def get_batch(self, step: int) -> Batch:
        return await (self.scheduler if self.feed is None else self.feed).get_batch(step)

    async def train(self, batch: Batch) -> Metrics:
        if self.feed is not None:
            return await self.feed.train(batch)
        await self.trainer.begin(batch.step)
        await self.trainer.accumulate(batch.groups)
        return await self.trainer.finish()

    async def finish_step(self, batch: Batch, metrics: Metrics) -> bool:
        """Book and write down the step, save when due. Returns whether it was the last: target reached, or stopped.

        An evaluation under way ends here: it may say that there is no need for another step.
        """
        state = self.state
        state.version = batch.step + 1
        self.scheduler.trained(batch)
        with self.phase("eval", batch.step):
            evaluation = None if state.stopping else await self.evaluation.result()
        await self.journal.record(batch, metrics, evaluation, self.weights.checksum)
        state.trainer_busy = False
        state.done = self.evaluation.reached_target(evaluation, batch.step) or state.stopping
        await self.checkpoints.save_if_due()
        return state.done or state.stopping

    async def go_back(self) -> None:
        """The trainer has died. A new one goes on from the newest checkpoint, and a new history begins there. Engines
        and hosts live on: engines get the weights of the checkpoint before they are asked again, and what was sampled
        since then ends as aborted."""
        state, checkpoints = self.state, self.checkpoints
        assert checkpoints.rewind is not None, "see may_go_back"
        state.trainer_busy = True
        kept = await checkpoints.rewind()
        version, history = kept.scheduler.version, self.weights.history + 1
        self.journal.go_back(kept.scheduler, history)
        self.evaluation.give_up(history)
        self.scheduler.go_back(kept.scheduler)
        await self.trainer.restart()
        if kept.folder is not None:
            await self.trainer.load(kept.folder)
        await self.weights.go_back(version, history)
        self.scheduler.go_on(kept.scheduler, history)
        state.version, state.saved = version, version if kept.folder is not None else None
        state.trainer_busy = False

    async def finish_run(self) -> None:
        """Bring the last version to the engines and evaluate it, unless the user wants to go."""
        if self.state.stopping:
            return
        if self.evaluation.tasks:
            await self.permits.take("rollout", self.state.version)
        await self.weights.commit(self.state.version)
        self.evaluation.start(self.state.version)
        if evaluation := await self.evaluation.result():
            self.journal.record_evaluation(evaluation)
