"""One heavy-tailed world, and the switches that are there against its tail.

Episodes take a lognormal number of turns (members of a group the same), and every environment step a lognormal time.
Training is quick, so rollout is what a step waits for. The control plane is the production one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.world.durations import constant, lognormal
from tests.world.environment import EnvironmentModel, coin
from tests.world.world import World

from rollweave.config.job import Job

STEPS = 60
SKIPPED_STEPS = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    pipeline: dict[str, Any] = field(default_factory=dict)
    rollout: dict[str, Any] = field(default_factory=dict)
    kept: float = 1.0
    """Share of the tasks that teach something; the members of the others all get the same reward."""

    def job(self, seed: int) -> Job:
        rollout = {"groups_per_step": 8, "group_size": 4, "environments": 16, "max_turns": 20}
        patience = {"deadlines": {"env_step": 1e6, "get_batch": 1e6}}
        return Job.model_validate(
            {
                "seed": seed,
                "model": {"type": "tiny"},
                "environment": {"type": "frozen_lake"},
                "pipeline": {"type": "rollart", "alpha": 1, **self.pipeline},
                "rollout": rollout | patience | self.rollout,
                "training": {"steps": STEPS, "loss": {"denominator": "behaviour"}},
                "evaluation": {"every": 0},
                "checkpoint": {"every": 0},
            }
        )

    def world(self) -> World:
        return World(
            token_seconds=constant(0.02),
            train_seconds=constant(0.2),
            environment=EnvironmentModel(
                turns=lambda rng: max(1, round(rng.lognormvariate(0.7, 0.6))),
                step_seconds=lognormal(0.5, 1.0),
                reward=coin if self.kept == 1.0 else self._reward,
            ),
        )

    def _reward(self, task: Random, answer: Random) -> float:
        return answer.random() if task.random() < self.kept else 0.0


PLAIN = "wait"
SCENARIOS = (
    Scenario(PLAIN),
    Scenario("requeue", {"policy": "requeue"}),
    Scenario("drop", {"policy": "drop"}),
    Scenario("+25 % groups", rollout={"redundant_groups": 0.25}),
    Scenario("+25 % groups, alpha 0", {"alpha": 0}, {"redundant_groups": 0.25}),
    Scenario("+1 member of 4", rollout={"redundant_members": 1}),
    Scenario("90 % filtered", rollout={"filter": "zero_variance"}, kept=0.1),
)
