"""The policy a job starts from: found, or made and taught the format of the conversation."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from rollweave.config.job import Job, TinyModel
from rollweave.environments.protocol import MakeEnvironment
from rollweave.environments.scripted import Episode, play_scripted
from rollweave.errors import RunFolderError
from rollweave.policies.chat import ChatFormat
from rollweave.policies.prepare import prepare
from rollweave.policies.warm_start import ScriptedEpisode, warm_start
from rollweave.seeds import derive
from rollweave.tasks import TaskSource

Progress = Callable[[str, int, int], None]
"""What is being done, how far it is, of how much."""


def start_policy(job: Job, folder: Path, environments: MakeEnvironment, tasks: TaskSource, progress: Progress) -> Path:
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
    job: Job, model: TinyModel, policy: Path, environments: MakeEnvironment, tasks: TaskSource, progress: Progress
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


def render(chat: ChatFormat, episode: Episode, max_context: int) -> ScriptedEpisode:
    """A scripted episode as the tokens its trajectory would have."""
    tokens: list[int] = []
    answers: list[bool] = []
    for number, (observation, action) in enumerate(episode):
        given = chat.open(observation) if number == 0 else chat.reply(observation, answered_end=True)
        answer = [*chat.tokenizer.encode(action, add_special_tokens=False), *chat.stop_tokens]
        tokens += given + answer
        answers += [False] * len(given) + [True] * len(answer)
    return ScriptedEpisode(tokens[:max_context], answers[:max_context])
