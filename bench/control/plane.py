"""A whole run of the `rollart` pipeline around parts that do nothing, on the wall clock, in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.control.null import TURNS, NullDialogue, NullEngine, NullEnvironment, NullScorer, NullTrainer
from rollweave.clock import Clock, run_wall
from rollweave.config.job import Job
from rollweave.fleet.proxy import LLMProxy
from rollweave.observability.events import Recorder
from rollweave.pipelines.assemble import Listeners, Machinery, assemble, pipeline
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.manager import Stage
from rollweave.tasks import SeedSource

GROUP_SIZE = 8


def turns_per_second(environments: int, turns: int) -> float:
    """Plays at least that many turns, `environments` episodes at a time."""
    return run_wall(lambda clock: _run(_job(environments, turns), clock))


def _job(environments: int, turns: int) -> Job:
    """A step consumes at least as many episodes as run at once: at alpha = 1 the next ones always wait to start."""
    groups = max(64, environments // GROUP_SIZE)
    return Job.model_validate(
        {
            "model": {"type": "tiny"},
            "environment": {"type": "frozen_lake"},
            "pipeline": {"type": "rollart", "alpha": 1},
            "rollout": {
                "groups_per_step": groups,
                "group_size": GROUP_SIZE,
                "environments": environments,
            },
            "training": {"steps": max(1, turns // (groups * GROUP_SIZE * TURNS)), "loss": {"denominator": "behaviour"}},
            "evaluation": {"every": 0},
            "checkpoint": {"every": 0},
        }
    )


async def _run(job: Job, clock: Clock) -> float:
    engine, dispatcher = NullEngine(), Dispatcher()
    host: EnvHost
    link = dispatcher.attach(lambda packet: host.link.receive(packet), job.rollout.slots)
    host = EnvHost(_stage(job, engine, clock), link.receive)
    machinery = Machinery([engine], NullTrainer(), dispatcher)
    listeners = Listeners(Recorder(clock.now))
    parts = assemble(job, machinery, SeedSource("null", job.seed), (), Path("unused"), clock, listeners)
    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(host.run())
        started = clock.now()
        await pipeline(job)(parts, 0, job.training.steps)
        seconds = clock.now() - started
        playing.cancel()
    parts.scheduler.ledger.check()
    return engine.answered / seconds


def _stage(job: Job, engine: NullEngine, clock: Clock) -> Stage:
    return Stage(
        clock=clock,
        proxy=LLMProxy([engine]),
        environment=lambda task: NullEnvironment(),
        dialogue=NullDialogue(),
        scorer=NullScorer(),
        deadlines=job.rollout.deadlines,
        max_turns=job.rollout.max_turns,
        max_context=job.rollout.max_context,
    )
