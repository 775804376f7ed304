"""The real engine and trainer driven by the virtual clock: the event order is fixed, so equality can be exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rollweave.clock import Clock, run_virtual
from rollweave.config.job import Job
from rollweave.engines.protocol import EngineStats
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import MemoryRecorder
from rollweave.pipelines.assemble import assemble
from rollweave.policies.chat import ChatFormat
from rollweave.policies.start import start_policy
from rollweave.rewards.scorer import NamedReward
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.runtimes.blueprint import Blueprint
from rollweave.runtimes.inline import start_inline
from rollweave.trajectory import Trajectory

STEPS = 3


def job(pipeline: dict[str, Any]) -> Job:
    return Job.model_validate(
        {
            "seed": 3,
            "model": {"type": "tiny", "hidden": 32, "layers": 2, "head_dim": 16, "intermediate": 64},
            "environment": {"type": "frozen_lake"},
            "pipeline": pipeline,
            "rollout": {"groups_per_step": 3, "group_size": 4, "environments": 7, "max_turns": 5},
            "training": {"steps": STEPS, "learning_rate": 1e-3},
            "evaluation": {"every": 0},
            "checkpoint": {"every": 0},
        }
    )


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    some = job({"type": "sync+"})
    environments = EnvironmentFactory.from_config(some.environment, Path())
    tasks = source(some.environment, some.seed, Path())
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    return start_policy(some, folder, environments, tasks, lambda what, done, total: None)


def step_seconds(stats: EngineStats) -> float:
    return 0.01 + 0.001 * (stats.running + stats.waiting)


def rights(trajectory: Trajectory) -> float:
    """A reward that differs between members, so that every step has something to learn."""
    return sum(turn.text.startswith("R") for turn in trajectory.turns)


class Played:
    """What a run trained on, and what it ended with."""

    def __init__(self, pipeline: dict[str, Any], policy: Path) -> None:
        self.trained: list[list[Trajectory]] = []
        self.rows: list[dict[str, Any]] = []
        run_virtual(lambda clock: self._play(job(pipeline), policy, clock))

    async def _play(self, job: Job, policy: Path, clock: Clock) -> None:
        rewards = (NamedReward("rights", rights, 1.0, "rights"),)
        blueprint = Blueprint(job, policy, EnvironmentFactory.from_config(job.environment, Path()), rewards)
        fleet = Fleet()
        dispatcher = Dispatcher.of(job.rollout, fleet)
        async with start_inline(blueprint, fleet, dispatcher, clock, step_seconds, train_step_seconds=0.2) as trainer:
            drive = assemble(
                job.control.model_copy(update={"steps": STEPS}),
                fleet,
                dispatcher,
                trainer,
                source(job.environment, job.seed, Path()),
                ChatFormat.of(policy).stop_tokens,
                Path("unused"),
                clock,
                MemoryRecorder(clock.now),
                on_row=[lambda step, row: self.rows.append(dict(row))],
                on_trajectories=[lambda step, trajectories: self.trained.append(trajectories)],
            )
            await drive.advance()
        drive.loop.scheduler.ledger.check()
        self.checksums = [row["weights/checksum"] for row in self.rows]


def contents(trajectories: list[Trajectory]) -> list[Any]:
    return [(t.id, list(t.spans()), t.rewards) for t in trajectories]


def test_rollart_at_alpha_zero_equals_sync_plus_bit_for_bit(policy: Path) -> None:
    one, other = Played({"type": "sync+"}, policy), Played({"type": "rollart", "alpha": 0}, policy)
    assert [contents(step) for step in one.trained] == [contents(step) for step in other.trained]
    assert one.checksums == other.checksums
    assert len(set(one.checksums)) == STEPS, "every step changed the weights"


def test_sync_consumes_the_same_tokens_as_sync_plus(policy: Path) -> None:
    """The barrier changes who shares a batch with whom, and nothing else: same tasks, same tokens."""
    one, other = Played({"type": "sync"}, policy), Played({"type": "sync+"}, policy)
    for before, after in zip(one.trained, other.trained, strict=True):
        assert [t.task for t in before] == [t.task for t in after]
        assert [t.tokens().tolist() for t in before] == [t.tokens().tolist() for t in after]
        for left, right in zip(before, after, strict=True):
            for one_span, other_span in zip(left.spans(), right.spans(), strict=True):
                if one_span.logprobs is not None:
                    assert one_span.logprobs == pytest.approx(other_span.logprobs, abs=1e-5)


def test_stale_trajectories_say_which_version_drew_each_token(policy: Path) -> None:
    """At alpha = 1 episodes cross updates; the spans of one episode then carry several versions, in order."""
    played = Played({"type": "rollart", "alpha": 1}, policy)
    versions = [[s.version for s in t.spans() if s.version is not None] for step in played.trained for t in step]
    assert all(v == sorted(v) for v in versions)
    assert any(len(set(v)) > 1 for v in versions), "some episode crossed an update"
    for step, trajectories in enumerate(played.trained):
        assert max(step - t.oldest_version for t in trajectories) <= 1


def test_trainer_and_engine_agree_on_the_log_probs(policy: Path) -> None:
    played = Played({"type": "sync+"}, policy)
    assert all(row["mismatch/logprob_gap"] < 1e-4 for row in played.rows)


def test_a_batch_is_canonical_whatever_order_its_groups_finished_in(policy: Path) -> None:
    trajectories = Played({"type": "sync+"}, policy).trained[0]
    order = [(t.group, t.member) for t in trajectories]
    assert order == sorted(order)
