"""What a pipeline is made of, and the few things all pipelines do between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rollweave.engines.protocol import Engine
from rollweave.errors import RollweaveError
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.phases import Phase
from rollweave.pipelines.journal import Journal
from rollweave.pipelines.permits import Alone, PermitSource, SharedPool, Tail
from rollweave.rollout.concurrency import AdaptiveConcurrency
from rollweave.rollout.evaluation import Evaluation, Evaluator
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.rollout.state import SchedulerState
from rollweave.training import checkpoint
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch


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
    concurrency: AdaptiveConcurrency
    """At work only in jobs that ask for it."""
    turns: PermitSource = field(default_factory=Alone)
    """Whether the pools are shared with other jobs."""
    engines: Sequence[Engine] = ()
    tail: Tail | None = None
    """Of jobs with several rollout nodes that others may wait for."""
    driver_state: Callable[[], checkpoint.DriverFiles] = checkpoint.DriverFiles
    """What a checkpoint keeps of the driver, as JSON."""
    version: int = 0
    """Train steps completed."""
    saved: int | None = None
    """The version of the newest checkpoint of this history."""
    stopping: bool = False
    """The user has seen enough: no further step."""
    done: bool = False
    """The last step is trained, earlier than planned: nothing is begun any more."""
    _trainer_at_work: bool = False
    """It trains, and is ahead of `version`, or it saves."""
    _standing: bool = False
    """The engines, because it is not their turn."""
    _partly: bool = False
    """The rollout turn began on some of its nodes."""

    def phase(self, name: Phase, step: int) -> AbstractContextManager[None]:
        self._trainer_at_work |= name == "train"
        return self.journal.phase(name, step)

    async def turn(self, pool: SharedPool, tokens: int = 0, partly: bool = False) -> None:
        """Before a phase. Where pools are shared, engines stand still outside their turn, whatever they hold. `partly`:
        it may begin on some of its nodes."""
        if not self.turns.shared:
            return
        await self.settle_evaluation()
        if not self._standing:
            for engine in self.engines:
                await engine.suspend()
            self._standing = True
        with self.phase("turn", self.version):
            nodes = await self.turns.take(pool, self.version, tokens, partly and self.tail is not None)
        if pool == "rollout":
            self._partly = nodes is not None
            if self.tail is not None:
                await self.tail.begin(nodes)
            for engine in self.engines:
                await engine.resume()
            self._standing = False

    async def get_batch(self, step: int) -> Batch:
        """The next batch. What is left of it when most is there makes room for others who wait, unless the engines are
        to evaluate afterwards."""
        if self.tail is None or self.evaluates(step):
            return await self.scheduler.get_batch(step)
        async with asyncio.TaskGroup() as tasks:
            making_room = tasks.create_task(self.tail.run(self._partly), name="tail")
            batch = await self.scheduler.get_batch(step)
            making_room.cancel()
        return batch

    def stop(self) -> bool:
        """Ask for the end. Returns whether the loop may be cancelled where it stands.

        If not, it ends by itself, soon: a step that is being trained is booked first, or its weights would be
        saved under the name of the step before.
        """
        self.stopping = True
        return not self._trainer_at_work

    def start_evaluation(self, version: int, last: bool = False) -> None:
        """Begin to evaluate what the engines have now, if it is due; training goes on meanwhile."""
        if self.evaluator is not None and (last or self.evaluates(version)):
            self.evaluator.start(version)

    def evaluates(self, version: int) -> bool:
        """Whether this version is to be evaluated."""
        return self.evaluator is not None and version % self.milestones.evaluate_every == 0

    async def settle_evaluation(self) -> None:
        """The weights that an evaluation looks at may not change before it has ended."""
        if self.evaluator is not None:
            await self.evaluator.settle()

    async def finish_step(self, batch: Batch, metrics: Metrics) -> bool:
        """Book and write down the step, save when due. Returns whether it was the last: target reached, or stopped.

        An evaluation under way ends here: it may say that there is no need for another step.
        """
        self.version = batch.step + 1
        self.scheduler.trained(batch)
        with self.phase("eval", batch.step):
            due = None if self.stopping else self.evaluator
            evaluation = await due.result() if due is not None else None
        await self.journal.record(batch, metrics, evaluation, self.weights.checksum)
        self._trainer_at_work = False
        self.done = self._reached_target(evaluation, batch.step) or self.stopping
        every = self.milestones.checkpoint_every
        if every and self.version % every == 0:
            await self.save_checkpoint()
        return self.done or self.stopping

    def _reached_target(self, evaluation: Evaluation | None, step: int) -> bool:
        target = self.milestones.target
        if evaluation is None or target is None or evaluation.reward < target:
            return False
        self.journal.reached(target, step)
        return True

    async def save_checkpoint(self) -> Path:
        """Save what has been trained so far, unless it is saved already."""
        folder = self.checkpoints / f"step-{self.version}"
        if self.saved != self.version:
            if folder.exists():  # left by a trainer that outlived its driver, after this history had begun
                checkpoint.set_aside(folder)
            self.journal.saving(self.version)
            self._trainer_at_work = True
            await self.trainer.save(folder, self.driver_state())
            self._trainer_at_work = False
            self.saved = self.version
            self.journal.saved(folder)
            checkpoint.prune(self.checkpoints, self.milestones.keep_checkpoints)
        return folder

    async def rescue(self) -> None:
        """After a failure: save what has been trained if the trainer lives and stands between two steps."""
        if self.version and not self._trainer_at_work and not self.stopping:
            with suppress(RollweaveError):  # the failure that led here says more
                await self.save_checkpoint()

    async def restore(self, folder: Path, state: SchedulerState) -> None:
        """Go on from a checkpoint: first the trainer, then the engines, then the books, which issue leases again."""
        await self.trainer.load(folder)
        if state.version != self.weights.version:
            await self.weights.publish(state.version)
            await self.weights.commit(state.version)
        self.scheduler.restore(state)
        self.version = self.saved = state.version

    async def finish_run(self) -> None:
        """Bring the last version to the engines and evaluate it, unless the user wants to go."""
        if self.stopping:
            return
        if self.evaluator is not None:
            await self.turn("rollout")
        await self.weights.commit(self.version)
        self.start_evaluation(self.version, last=True)
        if self.evaluator is not None and (evaluation := await self.evaluator.result()):
            self.journal.record_evaluation(evaluation)
