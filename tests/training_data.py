"""Batches made by hand for the training tests: what an engine would have sampled from a tiny policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rollweave.config.job import TinyModel
from rollweave.policies.tiny import build
from rollweave.tasks import Task
from rollweave.training.protocol import Metrics, Trainer
from rollweave.trajectory import Batch, Group, Outcome, Trajectory, Transform, logprob_array, token_ids
from spans import span_of

torch.set_num_threads(1)  # two threads per process on a shared machine cost ten times more than they bring

TASK = Task("task", "test", 0)
IDENTITY = Transform()
SMALL = TinyModel(type="tiny", hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, intermediate=64)


def tiny_policy(folder: Path, seed: int = 0) -> Path:
    return build(SMALL, seed, folder)


def trajectory(group: int, member: int, rng: random.Random, *, reward: float, version: int = 0) -> Trajectory:
    """A few turns of random tokens; log-probs are filled in by `score`, or stay rough guesses."""
    made = Trajectory(f"g{group}/m{member}", group, member, TASK, outcome=Outcome.FINISHED, rewards={"r": reward})
    for _ in range(rng.randint(1, 3)):
        made.observe(token_ids(rng.randrange(256) for _ in range(rng.randint(2, 9))))
        answer = [rng.randrange(256) for _ in range(rng.randint(1, 4))]
        guess = [rng.uniform(-6.5, -4.5) for _ in answer]
        made.answer([span_of(answer, guess, list(guess), version, Transform())], "", "stop")
    return made


def batch(
    seed: int = 0,
    *,
    groups: int = 3,
    size: int = 4,
    step: int = 0,
    version: int = 0,
    reward: Callable[[random.Random], float] = random.Random.random,
) -> Batch:
    rng = random.Random(seed)
    return Batch(
        step,
        [
            Group(g, TASK, [trajectory(g, m, rng, reward=reward(rng), version=version) for m in range(size)])
            for g in range(groups)
        ],
    )


@torch.no_grad()
def score(model: Any, made: Trajectory, transform: Transform = IDENTITY) -> None:
    """Give the sampled tokens the log-probs this model really has for them, one whole forward pass, no tricks."""
    tokens = made.tokens().tolist()
    logits = model(input_ids=torch.tensor([tokens])).logits[0]
    raw = torch.log_softmax(logits, -1)
    scaled = torch.log_softmax(logits / transform.temperature, -1)
    position = 0
    for span in made.spans():
        if span.sampled:
            places = range(position, position + len(span.tokens))
            span.raw_logprobs = logprob_array(float(raw[i - 1, tokens[i]]) for i in places)
            span.logprobs = logprob_array(float(scaled[i - 1, tokens[i]]) for i in places)
            span.transform = transform
        position += len(span.tokens)


async def train_step(trainer: Trainer, data: Batch) -> Metrics:
    """A whole step of a trainer as the control plane sees it."""
    await trainer.begin(data.step)
    await trainer.accumulate(data.groups)
    return await trainer.finish()
