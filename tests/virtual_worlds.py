"""Jobs and worlds for the virtual clock, and how a property tester draws them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests.world.durations import NO_TIME, constant, lognormal, normal
from tests.world.engine import SyncModel
from tests.world.environment import EnvironmentModel, RewardModel, coin
from tests.world.faults import Outage
from tests.world.hosts import TransportModel
from tests.world.world import SimulatedRun, World, simulate

from rollweave.clock import run_virtual
from rollweave.config.job import Job


def make_job(
    pipeline: dict[str, Any],
    seed: int = 0,
    steps: int = 6,
    evaluate: int = 0,
    save: int = 0,
    stream: bool = False,
    **rollout: Any,
) -> Job:
    numbers = {"groups_per_step": 4, "group_size": 3, "environments": 8, "max_turns": 6, **rollout}
    advantage = "grpo" if numbers["group_size"] > 1 else "reinforce++"
    return Job.model_validate(
        {
            "seed": seed,
            "model": {"type": "tiny"},
            "environment": {"type": "frozen_lake"},
            "pipeline": pipeline,
            "rollout": numbers,
            "training": {"steps": steps, "advantage": {"type": advantage}, "stream": stream},
            "evaluation": {"every": evaluate, "tasks": 3},
            "checkpoint": {"every": save},
        }
    )


def run(job: Job, world: World, resume: str | None = None) -> SimulatedRun:
    return run_virtual(lambda clock: simulate(job, world, clock, resume))


def rollart(alpha: float, **more: Any) -> dict[str, Any]:
    return {"type": "rollart", "alpha": alpha, **more}


# ----------------------------------------------------------------------------------------------------------- jobs

in_flight = st.sampled_from(["recompute", "keep", "restart_turn"])


@st.composite
def rollart_pipelines(draw: st.DrawFn) -> dict[str, Any]:
    alpha = draw(st.sampled_from([0, 0.5, 1, 1.25, 1.5, 2, 3]))
    return rollart(
        alpha,
        policy=draw(st.sampled_from(["wait", "requeue", "drop"])),
        max_requeues=draw(st.integers(0, 2)),
        sync_point=draw(st.sampled_from(["before_batch", "after_batch"])) if alpha >= 1 else "before_batch",
        in_flight=draw(in_flight),
    )


pipelines = st.one_of(
    rollart_pipelines(),
    rollart_pipelines(),  # twice: it has the most switches
    st.sampled_from([{"type": "sync"}, {"type": "sync+"}, {"type": "one_off"}]),
    st.builds(lambda alpha, mode: {"type": "areal", "alpha": alpha, "in_flight": mode}, st.integers(1, 2), in_flight),
)

rollouts = st.fixed_dictionaries(
    {
        "groups_per_step": st.integers(1, 4),
        "group_size": st.integers(1, 3),
        "environments": st.integers(1, 12),
        "redundant_groups": st.sampled_from([0.0, 0.0, 0.25, 1.0]),
        "redundant_members": st.sampled_from([0, 0, 1, 2]),
        "filter": st.sampled_from(["none", "none", "zero_variance"]),
        "scheduling": st.sampled_from(["queue", "queue", "batch"]),
        "prompt_replication": st.booleans(),
        "retry_backoff": st.sampled_from([0.0, 0.5]),
        "max_turns": st.sampled_from([2, 6]),
    }
)

plain_rollouts = rollouts.map(
    lambda rollout: rollout | {"redundant_groups": 0.0, "redundant_members": 0, "filter": "none"}
)
"""Every admitted group is wanted."""


def jobs(
    pipelines: st.SearchStrategy[dict[str, Any]] = pipelines,
    rollouts: st.SearchStrategy[dict[str, Any]] = rollouts,
    evaluate: st.SearchStrategy[int] = st.sampled_from([0, 0, 2]),  # noqa: B008 (strategies are values)
    steps: int = 4,
    save: st.SearchStrategy[int] = st.sampled_from([0, 0, 1]),  # noqa: B008
    stream: bool = False,
) -> st.SearchStrategy[Job]:
    def build(pipeline: dict[str, Any], rollout: dict[str, Any], seed: int, every: int, save: int) -> Job:
        if rollout["group_size"] == 1:
            rollout = rollout | {"filter": "none"}  # one member alone never differs
        return make_job(pipeline, seed, steps, every, save, stream and rollout["group_size"] > 1, **rollout)

    return st.builds(build, pipelines, rollouts, st.integers(0, 10**6), evaluate, save)


# --------------------------------------------------------------------------------------------------------- worlds

seconds = st.sampled_from([NO_TIME, constant(0.3), normal(0.3, 0.3), lognormal(0.2, 1.5)])

environments = st.builds(
    EnvironmentModel,
    turns=st.sampled_from([lambda rng: 1, lambda rng: rng.randint(1, 3)]),
    reward=st.just(coin),
    reset_seconds=seconds,
    step_seconds=seconds,
    failure_rate=st.sampled_from([0.0, 0.0, 0.05]),
    hang_rate=st.sampled_from([0.0, 0.0, 0.02]),
)

outages = st.builds(
    Outage,
    what=st.sampled_from(["engine", "host"]),
    number=st.integers(0, 2),
    at=st.sampled_from([0.0, 0.15, 0.8, 1.7, 3.1, 5.0]),
    seconds=st.sampled_from([0.0, 0.4, 5.0]),
)

worlds = st.builds(
    World,
    token_seconds=st.sampled_from([constant(0.01), constant(0.2), lognormal(0.1, 1.0)]),
    answer_tokens=st.just(lambda rng: rng.randint(1, 6)),
    train_seconds=st.sampled_from([NO_TIME, constant(0.1), constant(3.0)]),
    save_seconds=st.sampled_from([NO_TIME, constant(2.0)]),
    environment=environments,
    reward=st.sampled_from(
        [RewardModel(), RewardModel(lognormal(0.3, 1.0)), RewardModel(normal(0.2, 0.2), 0.05, 0.02)]
    ),
    sync=st.sampled_from([SyncModel(), SyncModel(constant(0.2), lognormal(0.3, 1.0), normal(0.1, 0.1))]),
    transport=st.sampled_from(
        [
            TransportModel(),
            TransportModel(lognormal(0.01, 1.0), 0.0, 0.3),
            TransportModel(lognormal(0.5, 1.0), 0.2, 0.3),
        ]
    ),
    outages=st.lists(outages, max_size=3).map(tuple),
    hosts=st.integers(1, 3),
    engines=st.integers(1, 2),
)
