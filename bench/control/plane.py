"""A whole run of the `rollart` pipeline around parts that do nothing, on the wall clock, in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.control.null import TURNS, NullDialogue, NullEngine, NullEnvironment, NullScorer, NullTrainer
from rollweave.clock import Clock, run_wall
from rollweave.config.job import Job
from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.fleet.proxy import LLMProxy
from rollweave.observability.events import Recorder
from rollweave.pipelines.assemble import assemble
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.manager import Stage, TurnBarrier
from rollweave.tasks import SeedSource

GROUP_SIZE = 8


def turns_per_second(environments: int, turns: int) -> float:
    """Plays at least that many turns, `environments` episodes at a time."""
    return run_wall(lambda clock: _run(null_job(environments, turns), clock))


def null_job(environments: int, turns: int, **sections: object) -> Job:
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
            **sections,
        }
    )


async def _run(job: Job, clock: Clock) -> float:
    engine, fleet = NullEngine(), Fleet()
    dispatcher = Dispatcher(fleet)
    fleet.join(EngineEntry("null-0/1", engine))
    host: EnvHost
    link = dispatcher.attach(lambda packet: host.link.receive(packet), job.rollout.slots)
    host = EnvHost(_stage(job, fleet, clock), link.receive)
    source, recorder = SeedSource("null", job.seed), Recorder(clock.now)
    drive = assemble(job.control, fleet, dispatcher, NullTrainer(), source, (), Path("unused"), clock, recorder)
    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(host.run())
        started = clock.now()
        await drive.advance()
        seconds = clock.now() - started
        playing.cancel()
    drive.loop.scheduler.ledger.check()
    return engine.answered / seconds


def _stage(job: Job, fleet: Fleet, clock: Clock) -> Stage:
    proxy = LLMProxy(clock, fleet.update())
    barrier = TurnBarrier() if job.control.has_barrier else None
    return Stage(clock, proxy, lambda task: NullEnvironment(), NullDialogue(), NullScorer(), job.rollout, barrier)
