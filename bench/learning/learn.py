"""One run: the real engine and trainer on the virtual clock, as stale as the bound allows, until the reward is there.

Generation takes next to no time and a train step takes long, so rollout is always as far ahead as it may be: in the
steady state every trajectory is exactly alpha versions old. That is the worst case of the bound, and it is the same
on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch

from rollweave.clock import Clock, run_virtual
from rollweave.config.job import Job
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import MemoryRecorder
from rollweave.pipelines.assemble import assemble
from rollweave.pipelines.journal import MetricsRow
from rollweave.pipelines.loop import Loop
from rollweave.policies.chat import ChatFormat
from rollweave.policies.start import start_policy
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.runtimes.blueprint import Blueprint
from rollweave.runtimes.inline import start_inline

ENGINE_STEP_SECONDS = 0.001
TRAIN_STEP_SECONDS = 100.0

SMOOTHED_STEPS = 5
"""The reward of a step is the mean over this many."""


@dataclass(slots=True)
class Curve:
    """What a run did, step by step."""

    rewards: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)
    stalest: float = 0.0

    def add(self, row: MetricsRow) -> None:
        reward, mean, most = (row[key] for key in ("reward/mean", "staleness/mean", "staleness/max"))
        assert isinstance(reward, float) and isinstance(mean, float | int) and isinstance(most, float | int)
        self.rewards.append(reward)
        self.staleness.append(float(mean))
        self.stalest = max(self.stalest, float(most))

    def steps_to(self, target: float) -> int | None:
        """Train steps until the smoothed reward is there; None: not in this run."""
        for step in range(SMOOTHED_STEPS, len(self.rewards) + 1):
            if fmean(self.rewards[step - SMOOTHED_STEPS : step]) >= target:
                return step
        return None


def make_policy(job: Job, folder: Path) -> Path:
    """The policy of this job's seed: every variant of a seed starts from the same."""
    torch.set_num_threads(1)
    environments = EnvironmentFactory.from_config(job.environment, Path())
    tasks = source(job.environment, job.seed, Path())
    return start_policy(job, folder, environments, tasks, lambda what, done, total: None)


def learn(job: Job, policy: Path, target: float) -> Curve:
    """Train until the smoothed reward reaches the target, or the job's last step."""
    torch.set_num_threads(1)
    curve = Curve()
    run_virtual(lambda clock: _learn(job, policy, target, curve, clock))
    return curve


async def _learn(job: Job, policy: Path, target: float, curve: Curve, clock: Clock) -> None:
    blueprint = Blueprint(job, policy, EnvironmentFactory.from_config(job.environment, Path()))
    loop: Loop
    fleet = Fleet()
    dispatcher = Dispatcher.of(job.rollout, fleet)

    def on_row(step: int, row: MetricsRow) -> None:
        curve.add(row)
        loop.state.stopping = curve.steps_to(target) is not None

    async with start_inline(
        blueprint, fleet, dispatcher, clock, lambda stats: ENGINE_STEP_SECONDS, TRAIN_STEP_SECONDS
    ) as trainer:
        drive = assemble(
            job.control,
            fleet,
            dispatcher,
            trainer,
            source(job.environment, job.seed, Path()),
            ChatFormat.of(policy).stop_tokens,
            policy.parent / "unused",
            clock,
            MemoryRecorder(clock.now),
            on_row=[on_row],
        )
        loop = drive.loop
        await drive.advance()
