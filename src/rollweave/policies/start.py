"""The policy a job starts from: found, or made and taught the format of the conversation.

A short supervised start: a model made from nothing learns how a conversation looks, not how to win it.

The scripted episodes come from an environment played with random legal actions, so imitating them teaches the format
of an answer. Predicting the observations too teaches the model to read the screen.

Scripted episodes: random legal actions, for the warm start of a policy made from nothing.

They teach the format of the conversation, not the game: what an action looks like, and what comes after it.
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

import torch

from rollweave.config.job import Job, TinyModel, WarmStart
from rollweave.environments.protocol import MakeEnvironment, Observation
from rollweave.errors import ModelError, RunFolderError
from rollweave.policies.chat import ChatFormat
from rollweave.policies.forward import fill_rows, load_model, pad_rows, save_model, token_logprobs
from rollweave.policies.prepare import prepare
from rollweave.seeds import derive, generator
from rollweave.tasks import Task, TaskSource

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


ScriptedTurns = list[tuple[Observation, str]]
"""What was seen, and what was answered, turn by turn."""


def play_scripted(factory: MakeEnvironment, tasks: Iterable[Task], max_turns: int, seed: int) -> list[ScriptedTurns]:
    """One episode per task. ConfigError if the environment has no `scripted_action`."""
    return asyncio.run(play_scripted_async(factory, tasks, max_turns, seed))


async def play_scripted_async(
    factory: MakeEnvironment, tasks: Iterable[Task], max_turns: int, seed: int
) -> list[ScriptedTurns]:
    """The same, for callers inside an event loop."""
    return [
        await _play(factory, task, max_turns, derive(seed, "scripted", number)) for number, task in enumerate(tasks)
    ]


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


OnProgress = Callable[[str, int, int], None]
"""What is being done, how far it is, of how much."""


def start_policy(
    job: Job, folder: Path, environments: MakeEnvironment, tasks: TaskSource, progress: OnProgress
) -> Path:
    """The Hugging Face folder of the policy; one that has to be made is made as `folder`, once for all of the run."""
    if folder.is_dir():
        return folder
    workplace = folder.with_name(f".making-{folder.name}")
    try:
        shutil.rmtree(workplace, ignore_errors=True)
        policy = prepare(job.model, job.seed, workplace)
        if isinstance(job.model, TinyModel) and job.model.warm_start.steps > 0:
            _teach_format(job, job.model, policy, environments, tasks, progress)
        if policy == workplace:  # only now: a process killed while it taught leaves no half-taught policy
            policy = workplace.rename(folder)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the policy to {folder}: {error.strerror or error}; free space on that disk or choose "
            "another place with --out"
        ) from error
    return policy


def _teach_format(
    job: Job, model: TinyModel, policy: Path, environments: MakeEnvironment, tasks: TaskSource, progress: OnProgress
) -> None:
    config = model.warm_start
    chat = ChatFormat.of(policy)
    # Random play on training tasks: nothing of the held-out split is seen.
    chosen = [tasks.task(index) for index in range(config.episodes)]
    seed = derive(job.seed, "warm start")
    episodes = [
        render(chat, episode, job.rollout.max_context)
        for episode in play_scripted(environments, chosen, job.rollout.max_turns, seed)
    ]
    warm_start(policy, episodes, config, seed, lambda step, loss: progress("warm start", step, config.steps))


def render(chat: ChatFormat, episode: ScriptedTurns, max_context: int) -> ScriptedEpisode:
    """A scripted episode as the tokens its trajectory would have."""
    tokens: list[int] = []
    answers: list[bool] = []
    for number, (observation, action) in enumerate(episode):
        given = chat.open(observation) if number == 0 else chat.reply(observation, answered_end=True)
        answer = [*chat.tokenizer.encode(action, add_special_tokens=False), *chat.stop_tokens]
        tokens += [*given.tolist(), *answer]
        answers += [False] * len(given) + [True] * len(answer)
    return ScriptedEpisode(tokens[:max_context], answers[:max_context])
