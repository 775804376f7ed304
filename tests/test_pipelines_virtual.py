"""The whole control plane on the virtual clock, with modelled machinery and injected faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.clock import run_virtual
from rollweave.config.job import Job
from rollweave.errors import EnvironmentFailed
from rollweave.rollout.ledger import LedgerError
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.simulation.durations import constant, lognormal, normal
from rollweave.simulation.environment import EnvironmentModel
from rollweave.simulation.transport import TransportModel
from rollweave.simulation.world import SimulatedRun, World, simulate


def job(pipeline: dict[str, Any], **rollout: Any) -> Job:
    numbers = {"groups_per_step": 4, "group_size": 3, "environments": 8, "max_turns": 6, **rollout}
    return Job.model_validate(
        {
            "model": {"type": "tiny"},
            "environment": {"type": "frozen_lake"},
            "pipeline": pipeline,
            "rollout": numbers,
            "training": {"steps": 6, "loss": {"denominator": "behaviour"}},
            "evaluation": {"every": 3, "tasks": 5},
        }
    )


def run(job: Job, world: World) -> SimulatedRun:
    return run_virtual(lambda clock: simulate(job, world, clock))


def rollart(alpha: int) -> dict[str, Any]:
    return {"type": "rollart", "alpha": alpha}


FAULTY = EnvironmentModel(
    turns=lambda rng: rng.randint(1, 5),
    reset_seconds=lognormal(0.5, 1.0),
    step_seconds=normal(0.3, 0.3),
    failure_rate=0.03,
    hang_rate=0.01,
)

worlds = st.builds(
    lambda env, loss, dup, delay, hosts, engines, train: World(
        environment=env,
        transport=TransportModel(lognormal(delay, 1.0), loss, dup),
        hosts=hosts,
        engines=engines,
        train_seconds=constant(train),
    ),
    st.sampled_from([FAULTY, EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=normal(0.3, 0.3))]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.001, 0.5]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([0.1, 3.0]),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), worlds, st.integers(0, 10**6))
def test_the_bound_holds_and_the_books_balance_under_faults(alpha: int, world: World, seed: int) -> None:
    result = run(job(rollart(alpha)).model_copy(update={"seed": seed}), world)
    for batch in result.trainer.batches:
        assert len(batch.groups) == 4
        assert max(batch.staleness()) <= alpha
    result.parts.scheduler.ledger.check()
    trained = [group.id for batch in result.trainer.batches for group in batch.groups]
    assert len(trained) == len(set(trained)) == 24


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(0, 10**6))
def test_the_bound_holds_when_new_groups_overtake_old_ones(alpha: int, seed: int) -> None:
    """Heavy tails and room for everybody: a few groups stay behind for many steps."""
    slow = EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=lognormal(0.2, 2.0))
    heavy = job(rollart(alpha), environments=500, deadlines={"env_step": 1e6, "get_batch": 1e6})
    steps = heavy.training.model_copy(update={"steps": 15})
    world = World(environment=slow, train_seconds=constant(0.1))
    result = run(heavy.model_copy(update={"seed": seed, "training": steps}), world)
    assert all(max(batch.staleness()) <= alpha for batch in result.trainer.batches)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3), worlds, st.integers(0, 10**6))
def test_what_is_trained_is_what_the_engine_sampled(alpha: int, world: World, seed: int) -> None:
    """Each trained episode is whole: alternating observation and answer, versions never going back."""
    result = run(job(rollart(alpha)).model_copy(update={"seed": seed}), world)
    for batch in result.trainer.batches:
        for trajectory in batch.trajectories():
            versions = [span.version for span in trajectory.spans() if span.version is not None]
            assert versions == sorted(versions)
            assert all(turn.answer for turn in trajectory.turns)
            assert trajectory.outcome is not None and trajectory.outcome.trainable


def consumed(result: SimulatedRun) -> list[list[tuple[int, str]]]:
    return [[(g.id, g.task.id) for g in batch.groups] for batch in result.trainer.batches]


def test_without_faults_the_consumed_tasks_are_the_admitted_ones_in_order() -> None:
    for pipeline in ({"type": "sync"}, {"type": "sync+"}, rollart(0)):
        groups = [number for step in consumed(run(job(pipeline), World())) for number, _ in step]
        assert groups == list(range(24))


def test_alpha_zero_equals_sync_plus_to_the_token_and_the_second() -> None:
    world = World(environment=EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=normal(0.3, 0.3)))
    plain = job({"type": "sync+"}).model_copy(
        update={"evaluation": job(rollart(0)).evaluation.model_copy(update={"every": 0})}
    )
    zero = plain.model_copy(update={"pipeline": job(rollart(0)).pipeline})
    one, other = run(plain, world), run(zero, world)
    assert one.trainer.batches == other.trainer.batches
    assert one.seconds == other.seconds


def test_overlap_is_faster_and_the_barrier_is_slower() -> None:
    world = World(environment=EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=normal(0.3, 0.3)))
    seconds = {
        name: run(job(pipeline), world).seconds
        for name, pipeline in {"sync": {"type": "sync"}, "sync+": {"type": "sync+"}, "rollart": rollart(1)}.items()
    }
    assert seconds["rollart"] < seconds["sync+"] < seconds["sync"]


def test_a_seed_fixes_everything() -> None:
    world = World(environment=FAULTY, transport=TransportModel(lognormal(0.1, 1.0), 0.1, 0.1), hosts=2)
    one, other = run(job(rollart(2)), world), run(job(rollart(2)), world)
    assert one.recorder.events == other.recorder.events
    assert one.rows == other.rows


def test_an_environment_that_always_fails_stops_the_run_with_its_own_error() -> None:
    world = World(environment=EnvironmentModel(turns=lambda rng: 1, failure_rate=1.0))
    with pytest.raises(ExceptionGroup) as caught:
        run(job(rollart(1)), world)
    assert caught.group_contains(EnvironmentFailed, match="injected failure")


def test_a_failure_is_never_a_reward() -> None:
    result = run(job(rollart(1)), World(environment=FAULTY))
    failed = [e for e in result.recorder.named("trajectory.end") if e.data["outcome"] in ("env_failed", "timed_out")]
    assert failed, "the world is meant to fail sometimes"
    trained = {t.id for batch in result.trainer.batches for t in batch.trajectories()}
    assert not trained & {event.data["id"] for event in failed}


def test_evaluation_is_pinned_and_outside_the_books() -> None:
    result = run(job(rollart(2)), World(environment=EnvironmentModel(turns=lambda rng: 3, step_seconds=constant(2.0))))
    evaluated = [row["eval/version"] for row in result.rows if "eval/version" in row]
    assert evaluated == [0, 3, 6]
    assert result.parts.scheduler.ledger.admitted >= 24
    assert not any("eval" in attempt for attempt in result.parts.scheduler.ledger.open_attempts)
    commits = {e.data["version"]: e.time for e in result.recorder.named("weights.commit")}
    for event in result.recorder.named("eval.end"):
        following = commits.get(int(event.data["version"]) + 1)  # type: ignore[arg-type]
        assert following is None or following >= event.time


@given(st.integers(0, 4), st.integers(1, 6))
def test_admission_allows_what_the_design_says(alpha: int, groups: int) -> None:
    """(1 + alpha) N right after an update, alpha N while the step trains."""
    from rollweave.rollout.staleness import StalenessBound

    bound = StalenessBound(alpha, groups)
    after_update = next(k for k in range(1000) if not bound.admits(k, next_step=7, engine_version=7))
    while_training = next(k for k in range(1000) if not bound.admits(k, next_step=8, engine_version=7))
    assert (after_update, while_training) == ((1 + alpha) * groups, alpha * groups)


def test_an_error_while_a_report_is_booked_ends_the_run_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports arrive in callbacks; what goes wrong there must not turn into a wait for ever."""

    def broken(*_: object) -> None:
        raise LedgerError("the books do not balance")

    monkeypatch.setattr(RolloutScheduler, "_end_member", broken)
    with pytest.raises(ExceptionGroup) as caught:
        run(job(rollart(1)), World())
    assert caught.group_contains(LedgerError, match="do not balance")
