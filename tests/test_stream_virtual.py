"""Streamed steps on the virtual clock: the same batches, most of the work done before the last group is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from tests.world.durations import constant, lognormal
from tests.world.environment import EnvironmentModel
from tests.world.world import World

from rollweave.clock import run_virtual
from rollweave.config.job import Job
from rollweave.errors import ConfigError
from rollweave.mux.daemon.client import check_shareable
from rollweave.observability.events import Event
from rollweave.rollout.staleness import GroupInLine, SampleBuffer, StalenessBound
from rollweave.simulation.simulate import run as run_scenario
from rollweave.simulation.simulate import scenario
from rollweave.tasks import Task
from rollweave.trajectory import Group
from test_pipelines_virtual import consumed, many
from training_data import batch
from virtual_oracles import check_everything, check_resumed, joined
from virtual_worlds import jobs, make_job, rollart, run, worlds

SLOW_TAIL = EnvironmentModel(turns=lambda rng: rng.randint(1, 4), step_seconds=lognormal(0.5, 1.0))


def streamed(job: Job, on: bool = True) -> Job:
    return job.model_copy(update={"training": job.training.model_copy(update={"stream": on})})


def some_group(id: int, version: int = 0) -> Group:
    return Group(id, Task("task", "test", id), batch(id, groups=1, version=version).groups[0].members)


# ------------------------------------------------------------------------------------------------ the batches


@pytest.mark.parametrize("rollout", [{}, {"redundant_groups": 0.5}, {"filter": "zero_variance"}])
def test_streaming_changes_no_batch_and_saves_time(rollout: dict[str, Any]) -> None:
    """At alpha 0 what is played does not depend on how long training takes."""
    world = World(environment=SLOW_TAIL, train_seconds=constant(2.0))
    job = make_job({"type": "sync+"}, **rollout)
    whole, stream = run(job, world), run(streamed(job), world)
    assert consumed(whole) == consumed(stream)
    assert stream.seconds < whole.seconds - 1.0
    assert all(0.0 <= row["train/streamed_share"] <= 1.0 for row in stream.rows)


@many(150)
@given(jobs(stream=True), worlds)
def test_every_invariant_holds_when_steps_are_streamed(job: Job, world: World) -> None:
    check_everything(job, world, run(job, world))


@many(50)
@given(jobs(steps=4, stream=True), worlds)
def test_a_streamed_run_that_is_cut_and_resumed_loses_and_repeats_nothing(job: Job, world: World) -> None:
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": 1})})
    first = run(job, world)
    check_resumed(job, world, joined(first, 2, run(job, world, resume=first.trainer.saved["step-2"])))


def test_a_group_is_claimed_once_and_only_if_the_step_is_sure_to_take_it() -> None:
    buffer = SampleBuffer(StalenessBound(alpha=1, groups_per_step=2))
    for id, version in ((3, 1), (4, 1), (5, 1)):
        buffer.put(some_group(id, version))
    oldest = GroupInLine(1, 0, complete=False)

    def claimed() -> list[int]:
        return [group.id for group in buffer.claim(1, [oldest])]

    assert claimed() == [3], "group 1 may still come, and takes the other place"
    assert claimed() == []
    buffer.put(some_group(1))
    assert [group.id for group in buffer.claim(1, [])] == [1]


def test_a_late_group_is_not_claimed_beyond_its_share() -> None:
    """With alpha 0.5 and 4 groups a step, 2 groups of the last version may be in it."""
    buffer = SampleBuffer(StalenessBound(alpha=0.5, groups_per_step=4))
    for id in (1, 2, 3):
        buffer.put(some_group(id, version=0))
    assert [group.id for group in buffer.claim(1, [])] == [1, 2]


def test_what_is_claimed_is_not_left_over() -> None:
    """Group 1 was renewed, so it is younger than group 2 and yet admitted before it."""
    buffer = SampleBuffer(StalenessBound(alpha=0, groups_per_step=1))
    buffer.put(some_group(2, version=0))
    assert [group.id for group in buffer.claim(0, [])] == [2]
    buffer.put(some_group(1, version=0))
    assert buffer.left_over(0) == [1]


# ------------------------------------------------------------------------------------------------ the work


def test_most_of_the_work_is_done_when_the_last_group_arrives() -> None:
    """Counted from the events: tokens of all groups but the last, and of those whose gradients were computed."""
    shares = streamed_shares({"type": "sync+"})
    assert min(shares) >= 0.8, shares


def test_rollart_streams_too() -> None:
    """In steps whose last group came while the trainer waited. At alpha 1 it often gets a whole batch at once."""
    shares = streamed_shares(rollart(0.5))
    assert shares
    assert min(shares) >= 0.8, shares


def streamed_shares(pipeline: dict[str, Any]) -> list[float]:
    events: list[Event] = []
    pools = [
        {"name": "rollout", "device": "H20", "count": 1, "role": "rollout"},
        {"name": "train", "device": "H800", "count": 32, "role": "train"},
    ]
    made = scenario(
        {
            "model": "qwen3-8b",
            "cluster": {"pools": pools},
            "workload": {"tasks": [{"preset": "gem-math"}]},
            "rollout": {"groups_per_step": 64, "group_size": 4},
            "training": {"steps": 4, "stream": True},
            "pipeline": pipeline,
        }
    )
    run_virtual(lambda clock: run_scenario(made, clock, [events.append]))
    return _shares(events)


def _shares(events: Sequence[Event]) -> list[float]:
    tokens: dict[int, int] = {}
    done: set[int] = set()
    waiting_since = 0.0
    shares = []
    for event in events:
        data: Any = event.data
        match event.name:
            case "trajectory.end":
                group = int(data["id"].split(".")[0])
                tokens[group] = tokens.get(group, 0) + data["tokens"]
            case "stream.end":
                done.update(data["groups"])
            case "phase.begin" if data["phase"] == "get_batch":
                waiting_since = event.time
            case "batch.ready":
                last = max(data["groups"], key=lambda group: _completed(events, group))
                if _completed(events, last) <= waiting_since:
                    continue
                earlier = [group for group in data["groups"] if group != last]
                shares.append(sum(tokens[g] for g in earlier if g in done) / sum(tokens[g] for g in earlier))
    return shares


def _completed(events: Sequence[Event], group: int) -> float:
    return next(e.time for e in events if e.name == "group.complete" and e.data["group"] == group)


# ------------------------------------------------------------------------------------------------ refused


def test_streaming_is_refused_where_engines_and_trainer_take_turns() -> None:
    job = make_job({"type": "sync+"})
    document = job.model_dump(mode="json") | {"runtime": {"type": "ray", "placement": "colocated"}}
    document["training"]["stream"] = True
    with pytest.raises(ValueError, match=r"take turns: remove training\.stream"):
        Job.model_validate_json(json.dumps(document))


def test_a_streamed_job_cannot_share_its_pools(tmp_path: Any) -> None:
    job = streamed(make_job({"type": "sync+"}))
    with pytest.raises(ConfigError, match=r"training\.stream=false"):
        check_shareable(job, tmp_path / "job.yaml")
