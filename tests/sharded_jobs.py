"""What ranks are asked to do in the tests of sharded training. Here, because other processes import it."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemWriter

from rollweave.config.training import TrainingConfig
from rollweave.policies.forward import load_model
from rollweave.training import trainer as trainer_module
from rollweave.training.ranks import ALONE, Ranks
from rollweave.training.trainer import TorchTrainer
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.store import MemoryStore
from training_data import batch

Config = dict[str, Any]
Weights = dict[str, torch.Tensor]

SEED = 1


def made(ranks: Ranks, folder: Path, config: Config, double: bool = False) -> TorchTrainer:
    plain = trainer_module.load_model
    try:
        if double:
            trainer_module.load_model = lambda folder: load_model(folder).double()
        return TorchTrainer(folder, TrainingConfig(**{"learning_rate": 1e-3, **config}), SEED, ranks)
    finally:
        trainer_module.load_model = plain


def weights(trainer: TorchTrainer) -> Weights:
    """On rank 0."""
    found = trainer.weights()
    whole = trainer.ranks.led(lambda: {name: tensor.clone() for name, tensor in found.items()}, found.make)
    return whole or {}


def train(
    ranks: Ranks, folder: Path, config: Config, steps: int, double: bool = False, stream: bool = False
) -> tuple[list[dict[str, float]], Weights]:
    """The metrics of some steps and the weights after them."""
    trainer = made(ranks, folder, config, double)
    return [step(trainer, number, stream) for number in range(steps)], weights(trainer)


def step(trainer: TorchTrainer, number: int, stream: bool = False) -> dict[str, float]:
    data = batch(number, groups=4, step=number, version=number)
    trainer.begin(number, stream)
    for group in data.groups:
        trainer.accumulate([group])
    return trainer.finish()


def publish(ranks: Ranks, folder: Path, config: Config, checkpoint: Path | None = None) -> Fingerprint:
    trainer = made(ranks, folder, config)
    if checkpoint is not None:
        trainer.load(checkpoint)
    return trainer.publish(trainer.version, MemoryStore(0.1))


def save(ranks: Ranks, folder: Path, config: Config, steps: int, into: Path) -> Weights:
    """Train, save, train once more."""
    trainer = made(ranks, folder, config)
    for number in range(steps):
        step(trainer, number)
    trainer.save(into)
    step(trainer, steps)
    return weights(trainer)


def load(ranks: Ranks, folder: Path, config: Config, steps: int, saved: Path) -> Weights:
    """Go on from a checkpoint, one step."""
    trainer = made(ranks, folder, config)
    trainer.load(saved)
    assert trainer.version == steps
    step(trainer, steps)
    return weights(trainer)


def disagree(ranks: Ranks, folder: Path) -> None:
    trainer = made(ranks, folder, {})
    trainer.version = 3 + ranks.rank
    step(trainer, 0)


def unwritable(ranks: Ranks, folder: Path, into: Path) -> None:
    """Rank 1 cannot write its part."""
    trainer = made(ranks, folder, {})
    step(trainer, 0)
    plain = FileSystemWriter.write_data
    try:
        if ranks.rank == 1:
            FileSystemWriter.write_data = _no_space
        trainer.save(into)
    finally:
        FileSystemWriter.write_data = plain


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def die_in_mid_step(ranks: Ranks, folder: Path, victim: int, number: int) -> None:
    """The victim sends itself a signal between two passes of a step."""
    trainer = made(ranks, folder, {"microbatch_tokens": 40})
    step(trainer, 0)
    plain, passes = trainer._backward, 0

    def backward(*arguments: Any, **options: Any) -> None:
        nonlocal passes
        passes += 1
        if ranks.rank == victim and passes == 2:
            os.kill(os.getpid(), number)
        plain(*arguments, **options)

    trainer._backward = backward  # type: ignore[method-assign]
    step(trainer, 1)


def single(folder: Path, config: Config, steps: int, double: bool = False) -> tuple[list[dict[str, float]], Weights]:
    return train(ALONE, folder, config, steps, double)


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
