"""What every trainer owes the control plane: see `Trainer` in the protocol of training."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from rollweave.clock import Clock
from rollweave.errors import UntrainableBatch
from rollweave.training import checkpoint
from rollweave.training.protocol import Trainer
from rollweave.trajectory import Batch, Outcome, logprob_array, token_ids
from spans import assert_same_files
from training_data import batch, train_step

DRIVER = checkpoint.DriverFiles('{"of": "the driver"}', {"tokens": token_ids([1, 2]), "logprobs": logprob_array([])})

Main = Callable[[Clock], Coroutine[Any, Any, None]]


class TrainerUnderTest(Protocol):
    """How one kind of trainer is made."""

    def run(self, main: Main) -> None:
        """Run to the end on its kind of clock."""
        ...

    def started(self, clock: Clock) -> AbstractAsyncContextManager[Trainer]:
        """A trainer that has made no step yet."""
        ...


async def a_step_says_what_it_trained(trainer: Trainer, folder: Path) -> None:
    for step in range(2):
        data = batch(step, step=step, version=step)
        metrics = await train_step(trainer, data)
        assert metrics["tokens/trained"] == data.sampled_tokens > 0
        assert all(math.isfinite(value) for value in metrics.values())


async def a_batch_that_was_not_honestly_sampled_is_refused(trainer: Trainer, folder: Path) -> None:
    before = await trainer.publish(0)
    for data, problem in dishonest_batches():
        with pytest.raises(UntrainableBatch, match=problem):
            await train_step(trainer, data)
    assert (await trainer.publish(0)).checksum == before.checksum, "nothing was learnt from it"
    await train_step(trainer, batch())


def dishonest_batches() -> list[tuple[Batch, str]]:
    unexplained, failed, unscored = batch(), batch(), batch()
    unexplained.groups[1].members[0].turns[0].answer[0].logprobs = None
    failed.groups[0].members[0].outcome = Outcome.TIMED_OUT
    unscored.groups[0].members[0].rewards = {"r": math.nan}
    return [
        (unexplained, "lack log-probs"),
        (failed, "timed_out"),
        (unscored, "its reward is nan"),
        (Batch(0, []), "the batch has no groups"),
    ]


async def a_step_makes_another_version(trainer: Trainer, folder: Path) -> None:
    first = await trainer.publish(0)
    same = await trainer.publish(0)
    await train_step(trainer, batch())
    second = await trainer.publish(1)
    assert (first.version, second.version) == (0, 1)
    assert first.checksum == same.checksum != second.checksum


async def a_checkpoint_brings_its_weights_back(trainer: Trainer, folder: Path) -> None:
    await train_step(trainer, batch())
    saved = await trainer.publish(1)
    await trainer.save(folder / "step-1", DRIVER)
    await train_step(trainer, batch(1, step=1, version=1))
    second = await trainer.publish(2)
    await trainer.load(folder / "step-1")
    assert (await trainer.publish(1)).checksum == saved.checksum
    await train_step(trainer, batch(1, step=1, version=1))
    assert (await trainer.publish(2)).checksum == second.checksum, "the same arithmetic, from the same state"


async def a_streamed_step_trains_every_group(trainer: Trainer, folder: Path) -> None:
    data = batch()
    await trainer.begin(0, stream=True)
    for group in reversed(data.groups):
        await trainer.accumulate([group])
    metrics = await trainer.finish()
    assert metrics["tokens/trained"] == data.sampled_tokens
    first = await trainer.publish(1)
    await train_step(trainer, batch(1, step=1, version=1))
    assert (await trainer.publish(2)).checksum != first.checksum


async def a_step_that_was_never_finished_leaves_nothing(trainer: Trainer, folder: Path) -> None:
    await trainer.save(folder / "step-0", DRIVER)
    await train_step(trainer, batch())
    expected = await trainer.publish(1)
    await trainer.load(folder / "step-0")
    untouched = await trainer.publish(0)
    await trainer.begin(0, stream=True)
    await trainer.accumulate(batch(3).groups[:1])
    assert (await trainer.publish(0)).checksum == untouched.checksum, "weights change at the end of a step only"
    await train_step(trainer, batch())
    assert (await trainer.publish(1)).checksum == expected.checksum


async def a_checkpoint_keeps_the_drivers_state(trainer: Trainer, folder: Path) -> None:
    await trainer.save(folder / "step-0", DRIVER)
    assert_same_files(checkpoint.read_driver(folder / "step-0"), DRIVER)


Behaviour = Callable[[Trainer, Path], Awaitable[None]]

BEHAVIOURS: tuple[Behaviour, ...] = (
    a_step_says_what_it_trained,
    a_batch_that_was_not_honestly_sampled_is_refused,
    a_step_makes_another_version,
    a_checkpoint_brings_its_weights_back,
    a_streamed_step_trains_every_group,
    a_step_that_was_never_finished_leaves_nothing,
)
CHECKPOINTS: tuple[Behaviour, ...] = (a_checkpoint_keeps_the_drivers_state,)
"""Of trainers that write any."""


def check_trainer(behaviour: Behaviour, kind: TrainerUnderTest, folder: Path) -> None:
    async def main(clock: Clock) -> None:
        async with kind.started(clock) as trainer:
            await behaviour(trainer, folder)

    kind.run(main)
