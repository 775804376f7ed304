"""`rollweave eval`: plays held-out tasks greedily with what a run has learnt, or with any model folder."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from rollweave.chat_client import ChatClient
from rollweave.clock import Clock, run_wall
from rollweave.config.job import HUB_NAME, Job, TinyModel
from rollweave.config.load import load_job, parse_text
from rollweave.engines.openai import MessageBook, ServerEngine
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.errors import ConfigError, first_cause
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.observability.events import Recorder
from rollweave.pipelines.assemble import evaluator
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.evaluation import Evaluation
from rollweave.rollout.scoring import HostBackend, Scoring
from rollweave.runtimes.blueprint import Blueprint
from rollweave.training.checkpoint import newest
from rollweave.weights.store import MemoryStore


def evaluate(target: str, overrides: Sequence[str], tasks: int) -> dict[str, Any]:
    """The result as one flat object, for printing or for a program."""
    job, policy = _resolve(target, overrides)
    return _evaluate(Blueprint(job, policy, EnvironmentFactory.from_config(job.environment, Path())), tasks)


def evaluate_server(url: str, model: str, overrides: Sequence[str], tasks: int) -> dict[str, Any]:
    """The same with a model behind a server that speaks OpenAI's chat interface."""
    if not any(override.startswith("environment.") for override in overrides):
        raise ConfigError(f"say what to play: rollweave eval --server {url} --model {model} --env frozen_lake")
    # A job has a model; this one is never loaded.
    job = parse_text("model: smollm2", "the command line", Path.cwd(), Job, overrides)
    blueprint = Blueprint(job, Path(model), EnvironmentFactory.from_config(job.environment, Path()))
    return _evaluate(blueprint, tasks, url)


def _evaluate(blueprint: Blueprint, tasks: int, server: str | None = None) -> dict[str, Any]:
    try:
        evaluation = run_wall(lambda clock: _play(blueprint, tasks, server, clock))
    except BaseExceptionGroup as group:
        raise first_cause(group) from group
    outcomes = Counter(str(t.outcome) for t in evaluation.trajectories)
    return {
        "policy": str(blueprint.policy),
        "tasks": len(evaluation.trajectories),
        "reward": evaluation.reward,
        "turns": evaluation.turns,
        "tokens": fmean(t.sampled_tokens for t in evaluation.trajectories),
        "failed": evaluation.failed,
        **outcomes,
    }


def _resolve(target: str, overrides: Sequence[str]) -> tuple[Job, Path]:
    """The job to take environment and limits from, and the folder of the policy."""
    from rollweave.policies.prepare import check_folder, find_model

    run = Path(target)
    if (run / "config.yaml").is_file():
        job = load_job(run / "config.yaml", overrides)
        checkpoint = newest(run / "checkpoints")
        if checkpoint is None:
            raise ConfigError(f"{target} has no checkpoint yet; wait for one, or name a model folder")
        return job, checkpoint
    model = _model(target)
    if isinstance(model, dict):
        check_folder(run)
    if not any(override.startswith("environment.") for override in overrides):
        raise ConfigError(
            f"{target} is not a run folder, so say what to play: rollweave eval {target} --env frozen_lake"
        )
    job = parse_text(json.dumps({"model": model}), "the command line", Path.cwd(), Job, overrides)
    if isinstance(job.model, TinyModel):
        raise ConfigError("a tiny model is made by a run: name the folder of a run that trained one")
    return job, find_model(job.model)


def _model(target: str) -> str | dict[str, str]:
    """A model of the hub or of ours as a job file names it; everything else is a folder, with or without `./`."""
    by_name = HUB_NAME.fullmatch(target) or target in ("tiny", "smollm2")
    return target if by_name and not Path(target).exists() else {"type": "local", "path": target}


async def _play(blueprint: Blueprint, tasks: int, server: str | None, clock: Clock) -> Evaluation:
    job = blueprint.job
    held_out = source(job.environment, job.seed, Path()).held_out(tasks)
    if not held_out:
        raise ConfigError("environment: no tasks are held out; set environment.held_out above 0")
    fleet = Fleet()
    dispatcher = Dispatcher.of(job.rollout, fleet)
    start = _start_engine(blueprint, fleet, dispatcher, clock)
    if server is not None:
        start = _start_server(server, blueprint, fleet, dispatcher, clock)
    async with start as stop_tokens:
        recorder = Recorder(clock.now)
        scoring = Scoring(HostBackend(dispatcher, recorder, job.rollout.max_retries), recorder)
        playing = evaluator(job.control, held_out, stop_tokens, dispatcher, scoring, clock, recorder)
        playing.start(0)
        evaluation = await playing.result()
    assert evaluation is not None
    return evaluation


@asynccontextmanager
async def _start_engine(
    blueprint: Blueprint, fleet: Fleet, dispatcher: Dispatcher, clock: Clock
) -> AsyncIterator[tuple[int, ...]]:
    """An engine with the policy, and a host. Yields the tokens that end an answer."""
    from rollweave.policies.chat import ChatFormat
    from rollweave.runtimes.inline import start_engines_and_host

    async with start_engines_and_host(blueprint, fleet, dispatcher, clock, MemoryStore()):
        yield ChatFormat.of(blueprint.policy).stop_tokens


@asynccontextmanager
async def _start_server(
    url: str, blueprint: Blueprint, fleet: Fleet, dispatcher: Dispatcher, clock: Clock
) -> AsyncIterator[tuple[int, ...]]:
    """A server that is there already, in the place of the engine."""
    from rollweave.runtimes.inline import start_host

    book = MessageBook()
    async with aclosing(ChatClient(url, str(blueprint.policy), os.environ.get("OPENAI_API_KEY"))) as client:
        fleet.join(EngineEntry("server/1", ServerEngine(client, book)))
        async with start_host(blueprint, fleet, dispatcher, clock, book):
            yield ()
