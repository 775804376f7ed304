"""A short supervised start: a model made from nothing learns how a conversation looks, not how to win it.

The scripted episodes come from an environment played with random legal actions, so imitating them teaches the format
of an answer. Predicting the observations too teaches the model to read the screen.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rollweave.config.job import WarmStart
from rollweave.errors import ModelError
from rollweave.policies.forward import fill_rows, load_model, pad_rows, save_model, token_logprobs
from rollweave.seeds import generator

PASS_TOKENS = 1024
"""Padded tokens per forward and backward pass."""


@dataclass(slots=True)
class ScriptedEpisode:
    """An episode rendered to tokens, as a trajectory would be."""

    tokens: list[int]
    answer_mask: list[bool]
    """True for the tokens of answers, end of turn included."""


def warm_start(
    folder: Path,
    episodes: Sequence[ScriptedEpisode],
    config: WarmStart,
    seed: int,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Train the policy in `folder` on the episodes and save it back; returns the last loss (nats per token)."""
    if not episodes:
        raise ModelError("the warm start got no scripted episodes; set model.warm_start.steps to 0 to do without it")
    model = load_model(folder)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    loss = math.nan
    batches = _batches(episodes, config.batch_tokens, seed)
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * _rate_share(step, config.steps)
        loss = _train(model, optimizer, next(batches), config.observations)
        progress(step + 1, loss)
    _save_back(model, folder)
    return loss


def _train(model: Any, optimizer: torch.optim.Optimizer, batch: list[ScriptedEpisode], observations: bool) -> float:
    """One update on the mean over all chosen tokens of the batch."""
    count = max(1, sum(len(_chosen(episode, observations)) for episode in batch))
    loss = 0.0
    for indices in fill_rows([len(episode.tokens) for episode in batch], PASS_TOKENS):
        rows = [batch[i] for i in indices]
        where = [(r, c) for r, episode in enumerate(rows) for c in _chosen(episode, observations)]
        row, column = torch.tensor(where, dtype=torch.long).reshape(-1, 2).T
        logprobs, _ = token_logprobs(model, pad_rows([e.tokens for e in rows]), row, column, torch.ones(len(where)))
        part = -logprobs.sum() / count
        part.backward()  # type: ignore[no-untyped-call]
        loss += float(part.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _chosen(episode: ScriptedEpisode, observations: bool) -> list[int]:
    """Positions to predict; the first token has nothing to be predicted from."""
    return [i for i in range(1, len(episode.tokens)) if observations or episode.answer_mask[i]]


def _batches(episodes: Sequence[ScriptedEpisode], tokens: int, seed: int) -> Iterator[list[ScriptedEpisode]]:
    """Endless batches of at least `tokens` tokens, shuffled anew each epoch."""
    batch: list[ScriptedEpisode] = []
    for epoch in itertools.count():
        for episode in generator(seed, "warm-start", epoch).sample(list(episodes), len(episodes)):
            batch.append(episode)
            if sum(len(e.tokens) for e in batch) >= tokens:
                yield batch
                batch = []


def _rate_share(step: int, steps: int) -> float:
    """Up over the first tenth of the steps, down over the last three tenths."""
    return min(1.0, (step + 1) / (0.1 * steps), (steps - step) / (0.3 * steps))


def _save_back(model: Any, folder: Path) -> None:
    """Swap the files one by one: the weights being saved may still be mapped from the very file they replace."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent) as workplace:
        save_model(model, tokenizer, Path(workplace))
        for file in Path(workplace).iterdir():
            file.replace(folder / file.name)
