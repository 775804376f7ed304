"""Provides the policy that a job starts from: an existing one, or a tiny one with a warm start.

The warm start is a short supervised training. It plays scripted episodes, in which the environment itself chooses
random legal actions, and trains the policy to imitate them. That teaches the format of the conversation (what an
action looks like, and what comes after it), not the game. Predicting the observations too teaches the model to
read the screen.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rollweave.config.job import Job, TinyModel, WarmStart
from rollweave.crossing import scalar, up
from rollweave.environments.protocol import MakeEnvironment, Observation
from rollweave.errors import ModelError, RunFolderError
from rollweave.policies.chat import ChatFormat
from rollweave.policies.forward import fill_rows, load_model, pad_rows, save_model, token_logprobs
from rollweave.policies.prepare import prepare
from rollweave.seeds import derive, generator
from rollweave.tasks import Task, TaskSource

PASS_TOKENS = 1024
"""Padded tokens per forward and backward pass."""

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

ScriptedTurns = list[tuple[Observation, str]]
"""The observation and the action of each turn."""


@dataclass(slots=True)
class ScriptedEpisode:
    """A scripted episode as the tokens that its trajectory would have."""

    tokens: list[int]
    answer_mask: list[bool]
    """True for the tokens of answers, including the end of turn."""


def start_policy(
    job: Job, folder: Path, environments: MakeEnvironment, tasks: TaskSource, progress: OnProgress
) -> Path:
    """Return the Hugging Face folder of the policy. A policy that must be made is made in `folder`, once per run."""
    if folder.is_dir():
        return folder
    workplace = folder.with_name(f".making-{folder.name}")
    try:
        shutil.rmtree(workplace, ignore_errors=True)
        policy = prepare(job.model, job.seed, workplace)
        if isinstance(job.model, TinyModel) and job.model.warm_start.steps > 0:
            _teach_format(job, job.model.warm_start, policy, environments, tasks, progress)
        if policy == workplace:  # renamed only now, so that a killed process leaves no half-trained policy
            policy = workplace.rename(folder)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the policy to {folder}: {error.strerror or error}; free space on that disk or choose "
            "another place with --out"
        ) from error
    return policy


def _teach_format(
    job: Job, config: WarmStart, policy: Path, environments: MakeEnvironment, tasks: TaskSource, progress: OnProgress
) -> None:
    chat = ChatFormat.of(policy)
    # The scripted episodes use training tasks only, so the policy sees nothing of the held-out split.
    chosen = [tasks.task(index) for index in range(config.episodes)]
    seed = derive(job.seed, "warm start")
    episodes = [
        render(chat, episode, job.rollout.max_context)
        for episode in play_scripted(environments, chosen, job.rollout.max_turns, seed)
    ]
    warm_start(policy, episodes, config, seed, lambda step, loss: progress("warm start", step, config.steps))


def play_scripted(factory: MakeEnvironment, tasks: Iterable[Task], max_turns: int, seed: int) -> list[ScriptedTurns]:
    """Play one episode per task. Raises ConfigError if the environment has no `scripted_action`."""

    async def play_all() -> list[ScriptedTurns]:
        return [await _play(factory, task, max_turns, derive(seed, "scripted", n)) for n, task in enumerate(tasks)]

    return asyncio.run(play_all())


async def _play(factory: MakeEnvironment, task: Task, max_turns: int, seed: int) -> ScriptedTurns:
    environment = factory(task)
    episode: ScriptedTurns = []
    try:
        observation = await environment.reset(task.seed, task.data)
        for turn in range(max_turns):
            action = await environment.scripted_action(derive(seed, turn))
            episode.append((observation, action))
            result = await environment.step(action)
            if result.done or result.truncated:
                break
            observation = result.observation
    finally:
        await environment.close()
    return episode


def render(chat: ChatFormat, episode: ScriptedTurns, max_context: int) -> ScriptedEpisode:
    """Render a scripted episode to tokens, cut at `max_context`."""
    tokens: list[int] = []
    answers: list[bool] = []
    for number, (observation, action) in enumerate(episode):
        given = chat.open(observation) if number == 0 else chat.reply(observation, answered_end=True)
        answer = [*chat.tokenizer.encode(action, add_special_tokens=False), *chat.stop_tokens]
        tokens += [*given.tolist(), *answer]
        answers += [False] * len(given) + [True] * len(answer)
    return ScriptedEpisode(tokens[:max_context], answers[:max_context])


def warm_start(
    folder: Path,
    episodes: Sequence[ScriptedEpisode],
    config: WarmStart,
    seed: int,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Train the policy in `folder` on the episodes, save it there, and return the last loss (nats per token)."""
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
    """Make one update on the mean loss over all chosen tokens of the batch."""
    count = max(1, sum(len(_chosen(episode, observations)) for episode in batch))
    loss = 0.0
    for indices in fill_rows([len(episode.tokens) for episode in batch], PASS_TOKENS):
        rows = [batch[i] for i in indices]
        where = [(r, c) for r, episode in enumerate(rows) for c in _chosen(episode, observations)]
        row, column = np.array(where, np.int64).reshape(-1, 2).T
        ones, tokens = np.ones(len(where), np.float32), pad_rows([e.tokens for e in rows])
        logprobs, _ = token_logprobs(model, *up(model.device, tokens, row.copy(), column.copy(), ones))
        part = -logprobs.sum() / count
        part.backward()  # type: ignore[no-untyped-call]
        loss += scalar(part)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _chosen(episode: ScriptedEpisode, observations: bool) -> list[int]:
    """The positions to predict. The first token is left out, because no token comes before it."""
    return [i for i in range(1, len(episode.tokens)) if observations or episode.answer_mask[i]]


def _batches(episodes: Sequence[ScriptedEpisode], tokens: int, seed: int) -> Iterator[list[ScriptedEpisode]]:
    """Yield batches of at least `tokens` tokens without end, in a new random order each epoch."""
    batch: list[ScriptedEpisode] = []
    for epoch in itertools.count():
        for episode in generator(seed, "warm-start", epoch).sample(list(episodes), len(episodes)):
            batch.append(episode)
            if sum(len(e.tokens) for e in batch) >= tokens:
                yield batch
                batch = []


def _rate_share(step: int, steps: int) -> float:
    """The learning rate as a share: it rises over the first tenth of the steps and falls over the last three tenths."""
    return min(1.0, (step + 1) / (0.1 * steps), (steps - step) / (0.3 * steps))


def _save_back(model: Any, folder: Path) -> None:
    """Replace the files one by one, because the weights may still be mapped from the file that is replaced."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent) as workplace:
        save_model(model, tokenizer, Path(workplace))
        for file in Path(workplace).iterdir():
            file.replace(folder / file.name)
