"""What a pipeline is made of, and the few things all pipelines do between two steps."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rollweave.observability.phases import Phase
from rollweave.pipelines.journal import Journal
from rollweave.rollout.evaluation import Evaluator
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.training import checkpoint
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch
from rollweave.weights.sync import WeightSync


@dataclass(frozen=True, slots=True)
class Milestones:
    """When to look up from training."""

    evaluate_every: int = 0
    target: float | None = None
    checkpoint_every: int = 0
    keep_checkpoints: int = 2


@dataclass(slots=True)
class Parts:
    scheduler: RolloutScheduler
    trainer: Trainer
    weights: WeightSync
    journal: Journal
    evaluator: Evaluator | None
    milestones: Milestones
    checkpoints: Path
    version: int = 0
    """Train steps completed."""

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        return self.journal.phase(name)

    def start_evaluation(self, version: int, last: bool = False) -> None:
        """Begin to evaluate what the engines have now, if it is due; training goes on meanwhile."""
        every = self.milestones.evaluate_every
        if self.evaluator is not None and every > 0 and (last or version % every == 0):
            self.evaluator.start(version)

    async def finish_step(self, batch: Batch, metrics: Metrics) -> bool:
        """Book and write down the step, save when due. Returns whether the target is reached.

        An evaluation under way ends here: the weights it looks at may not change before.
        """
        self.version = batch.step + 1
        self.scheduler.trained(batch)
        with self.phase("eval"):
            evaluation = await self.evaluator.result() if self.evaluator is not None else None
        await self.journal.record(batch, metrics, evaluation, self.weights.checksum)
        every = self.milestones.checkpoint_every
        if every and self.version % every == 0:
            await self.save_checkpoint()
        target = self.milestones.target
        return evaluation is not None and target is not None and evaluation.reward >= target

    async def save_checkpoint(self) -> Path:
        """Save what has been trained so far, unless it is saved already."""
        folder = self.checkpoints / f"step-{self.version}"
        if not folder.exists():
            await self.trainer.save(folder)
            self.journal.saved(folder)
            checkpoint.prune(self.checkpoints, self.milestones.keep_checkpoints)
        return folder

    async def finish_run(self) -> None:
        """Bring the last version to the engines and evaluate it."""
        await self.weights.commit(self.version)
        self.start_evaluation(self.version, last=True)
        if self.evaluator is not None and (evaluation := await self.evaluator.result()):
            self.journal.record_evaluation(evaluation)
