"""RunState: how far a run has come. Checkpoints: when to save it, what of the driver to keep, how to go on from one.

The trainer writes all files; the driver's part, `state/driver.json` and its sidecar, is a `DriverState`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollweave.config.control import CheckpointConfig
from rollweave.errors import RollweaveError
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.events import Emitter
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.rollout.state import SchedulerState, adapter, pack, unpack
from rollweave.training import checkpoint
from rollweave.training.protocol import Trainer


@dataclass(slots=True)
class RunState:
    """The pipeline writes it; what runs beside it reads it."""

    version: int = 0
    """Train steps completed."""
    saved: int | None = None
    """The version of the newest checkpoint of this history."""
    stopping: bool = False
    """The user asked for the end: no further step."""
    done: bool = False
    """The last step is trained, earlier than planned: nothing is begun any more."""
    trainer_busy: bool = False
    """It trains, and is ahead of `version`, or it saves."""

    def stop(self) -> bool:
        """Ask for the end. Returns whether the loop may be cancelled where it stands.

        If not, it ends by itself, soon: a step that is being trained is booked first, or its weights would be
        saved under the name of the step before.
        """
        self.stopping = True
        return not self.trainer_busy


@dataclass(slots=True)
class LogMark:
    """How far a log had been written, and its last line, which tells whether the file is still the same."""

    size: int = 0
    last: str = ""


@dataclass(slots=True)
class DriverState:
    """`state/driver.json` of a checkpoint, with its sidecar."""

    scheduler: SchedulerState = field(default_factory=SchedulerState)
    elapsed: float = 0.0
    logs: dict[str, LogMark] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    """The job it was saved under, as in config.yaml: that file may have changed since."""

    def dump(self) -> checkpoint.DriverFiles:
        return pack(_STATE, self)

    @classmethod
    def load(cls, files: checkpoint.DriverFiles) -> DriverState:
        return unpack(_STATE, files)


_STATE = adapter(DriverState)

LIVES_PER_CHECKPOINT = 3
"""A trainer that dies that often after the same checkpoint would die again."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a run goes back to: a checkpoint, or its start."""

    folder: Path | None = None
    scheduler: SchedulerState = field(default_factory=SchedulerState)


@dataclass(slots=True)
class Checkpoints:
    folder: Path
    config: CheckpointConfig
    scheduler: RolloutScheduler
    trainer: Trainer
    weights: WeightSync
    state: RunState
    recorder: Emitter
    describe: Callable[[SchedulerState], DriverState] = DriverState
    """What to keep around the scheduler's state: a session adds its logs and its job."""
    rewind: Callable[[], Awaitable[Kept]] | None = None
    """Finds where the run goes back to when its trainer dies. None: it ends."""
    _deaths: Counter[int | None] = field(default_factory=Counter)
    """Of the trainer, by the checkpoint before."""

    async def save_if_due(self) -> None:
        """Between two steps."""
        if self.config.every and self.state.version % self.config.every == 0:
            await self.save()

    async def save(self) -> Path:
        """Save what has been trained so far, unless it is saved already."""
        state = self.state
        folder = self.folder / f"step-{state.version}"
        if state.saved != state.version:
            if folder.exists():  # left by a trainer that outlived its driver, after this history had begun
                checkpoint.set_aside(folder)
            self.recorder.emit("checkpoint.begin", version=state.version)  # the last event before the marks of the logs
            state.trainer_busy = True
            await self.trainer.save(folder, self.describe(self.scheduler.state(state.version)).dump())
            state.trainer_busy = False
            state.saved = state.version
            self.recorder.emit("checkpoint.saved", folder=str(folder))
            checkpoint.prune(self.folder, self.config.keep)
        return folder

    async def rescue(self) -> None:
        """After a failure: save what has been trained if the trainer lives and stands between two steps."""
        state = self.state
        if state.version and not state.trainer_busy and not state.stopping:
            with suppress(RollweaveError):  # the failure that led here says more
                await self.save()

    def may_go_back(self) -> bool:
        """The trainer has died: whether to go on with another one."""
        self._deaths[self.state.saved] += 1
        few = self._deaths[self.state.saved] <= LIVES_PER_CHECKPOINT
        return few and self.rewind is not None and not self.state.stopping

    async def restore(self, folder: Path, kept: SchedulerState) -> None:
        """Go on from a checkpoint: first the trainer, then the engines, then the books, which issue leases again."""
        await self.trainer.load(folder)
        self.weights.history = kept.history
        if self.weights.named(kept.version) != self.weights.version:
            await self.weights.publish(kept.version)
            await self.weights.commit(kept.version)
        self.scheduler.restore(kept)
        self.state.version = self.state.saved = kept.version
