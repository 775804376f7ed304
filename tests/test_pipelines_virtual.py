"""The whole control plane on the virtual clock, with modelled machinery and injected faults.

The property tests draw a job (mode, alpha, policy, group sizes, redundancy, filter ...) and a world (slow, hung and
failing environments and rewards, dying engines and hosts, lost and doubled messages, slow weight sync) and ask
`virtual_oracles` about what happened. That nothing deadlocks needs no oracle: the virtual clock raises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.world.durations import NO_TIME, constant, lognormal, normal
from tests.world.engine import SyncModel
from tests.world.environment import EnvironmentModel, RewardModel
from tests.world.faults import Outage
from tests.world.hosts import TransportModel
from tests.world.world import SimulatedRun, World

from rollweave.config.job import Job
from rollweave.errors import EnvironmentFailed
from rollweave.pipelines.checkpoints import DriverState
from rollweave.rollout.ledger import LedgerError
from rollweave.rollout.scheduler import RolloutScheduler
from virtual_oracles import check_everything, check_resumed, data, joined, trained
from virtual_worlds import jobs, make_job, plain_rollouts, rollart, rollart_pipelines, run, worlds

FAULTY = EnvironmentModel(
    turns=lambda rng: rng.randint(1, 5),
    reset_seconds=lognormal(0.5, 1.0),
    step_seconds=normal(0.3, 0.3),
    failure_rate=0.03,
    hang_rate=0.01,
)
UNEVEN = EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=normal(0.3, 0.3))


def many(examples: int) -> settings:
    """The fast tier draws the same schedules every time; explaining a failure would trace every line of every run."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    return settings(max_examples=examples, deadline=None, phases=phases, suppress_health_check=[HealthCheck.too_slow])


# ------------------------------------------------------------------------------------------------- property tests


@pytest.mark.timeout(900)
@many(1000)
@given(jobs(), worlds)
def test_every_invariant_holds_in_every_mode_under_every_fault(job: Job, world: World) -> None:
    check_everything(job, world, run(job, world))


@pytest.mark.timeout(900)
@many(400)
@given(jobs(rollart_pipelines(), plain_rollouts, steps=6), worlds)
def test_every_invariant_holds_when_every_group_is_wanted(job: Job, world: World) -> None:
    """Without redundancy and filter: `wait` wastes nothing, `requeue` loses no task."""
    check_everything(job, world, run(job, world))


@many(60)
@given(st.sampled_from([1, 1.5, 2, 3, 4]), st.sampled_from(["wait", "requeue", "drop"]), st.integers(0, 10**6))
def test_the_bound_holds_when_new_groups_overtake_old_ones(alpha: float, policy: str, seed: int) -> None:
    """Heavy tails and room for every group: a few groups stay behind for many steps."""
    slow = EnvironmentModel(turns=lambda rng: rng.randint(1, 3), step_seconds=lognormal(0.2, 2.0))
    room = {"environments": 500, "group_size": 2, "deadlines": {"env_step": 1e6, "get_batch": 1e6}}
    job = make_job(rollart(alpha, policy=policy), seed, steps=10, **room)
    world = World(environment=slow, train_seconds=constant(0.1))
    check_everything(job, world, run(job, world))


@many(150)
@given(jobs(st.just({"type": "sync+"}), evaluate=st.just(0)), worlds)
def test_alpha_zero_equals_sync_plus_to_the_token_and_the_second(job: Job, world: World) -> None:
    """Where saving takes no time: `rollart` brings new weights to the engines meanwhile."""
    world = replace(world, save_seconds=NO_TIME)
    zero = job.model_copy(update={"pipeline": make_job(rollart(0)).pipeline})
    one, other = run(job, world), run(zero, world)
    assert one.trainer.batches == other.trainer.batches
    assert one.seconds == other.seconds


@many(200)
@given(jobs(steps=5, save=st.just(1)), worlds, st.integers(1, 4))
def test_a_run_that_is_cut_and_resumed_loses_and_repeats_nothing(job: Job, world: World, cut: int) -> None:
    first = run(job, world)
    second = run(job, world, resume=first.trainer.saved[f"step-{cut}"])
    check_resumed(job, world, joined(first, cut, second))


@pytest.mark.slow
@pytest.mark.timeout(900)
@many(1200)
@given(jobs(steps=6), worlds)
def test_every_invariant_holds_in_many_more_worlds(job: Job, world: World) -> None:
    check_everything(job, world, run(job, world))


# ------------------------------------------------------------------------------------------------- single scenarios


def consumed(result: SimulatedRun) -> list[list[tuple[int, str]]]:
    return [[(g.id, g.task.id) for g in batch.groups] for batch in result.trainer.batches]


def test_without_faults_the_consumed_tasks_are_the_admitted_ones_in_order() -> None:
    for pipeline in ({"type": "sync"}, {"type": "sync+"}, rollart(0)):
        groups = [number for step in consumed(run(make_job(pipeline), World())) for number, _ in step]
        assert groups == list(range(24))


def test_overlap_is_faster_and_the_barrier_is_slower() -> None:
    world = World(environment=UNEVEN)
    seconds = {
        name: run(make_job(pipeline), world).seconds
        for name, pipeline in {
            "sync": {"type": "sync"},
            "sync+": {"type": "sync+"},
            "one_off": {"type": "one_off"},
            "rollart": rollart(1),
        }.items()
    }
    assert seconds["rollart"] < seconds["one_off"] < seconds["sync+"] < seconds["sync"]


def test_one_off_trains_whole_batches_of_the_last_version() -> None:
    result = run(make_job({"type": "one_off"}), World(environment=UNEVEN))
    assert [set(batch.staleness()) for batch in result.trainer.batches] == [{0}, *([{1}] * 5)]


def test_a_start_only_check_exceeds_the_bound_that_rollart_keeps() -> None:
    """Why AReaL's check is the baseline: a long episode gets too old, unnoticed."""
    slow = EnvironmentModel(turns=lambda rng: rng.choice([1, 1, 1, 6]), step_seconds=lognormal(0.5, 2.0))
    world = World(environment=slow, train_seconds=constant(0.1))
    oldest = {}
    for pipeline in ({"type": "areal", "alpha": 1}, rollart(1)):
        result = run(make_job(pipeline, steps=12, environments=100), world)
        oldest[pipeline["type"]] = max(age for batch in result.trainer.batches for age in batch.staleness())
    assert oldest["rollart"] == 1 < oldest["areal"]


@pytest.mark.parametrize(("alpha", "seed"), [(0.5, 3), (1.5, 2)])
def test_more_survivors_than_expected_are_surplus_not_too_old(alpha: float, seed: int) -> None:
    """Over-issued groups that all pass the filter: only a share of the batch may be one version older."""
    slow = EnvironmentModel(turns=lambda rng: 1, step_seconds=lognormal(0.2, 1.5))
    world = World(environment=slow, train_seconds=constant(0.1))
    job = make_job(rollart(alpha), seed, groups_per_step=2, group_size=2, filter="zero_variance")
    result = run(job, world)
    check_everything(job, world, result)
    assert result.loop.scheduler.ledger.tokens["surplus"] > 0


def test_a_seed_fixes_everything() -> None:
    outages = (Outage("host", 0, 1.0, 2.0), Outage("engine", 0, 4.0, 2.0))
    world = World(environment=FAULTY, transport=TransportModel(lognormal(0.1, 1.0), 0.1, 0.1), hosts=2, outages=outages)
    one, other = run(make_job(rollart(2)), world), run(make_job(rollart(2)), world)
    assert one.recorder.events == other.recorder.events
    assert one.rows == other.rows


def test_an_environment_that_always_fails_stops_the_run_with_its_own_error() -> None:
    world = World(environment=EnvironmentModel(turns=lambda rng: 1, failure_rate=1.0))
    with pytest.raises(ExceptionGroup) as caught:
        run(make_job(rollart(1)), world)
    assert caught.group_contains(EnvironmentFailed, match="injected failure")


def test_failures_happen_and_are_never_trained() -> None:
    world = World(environment=FAULTY, reward=RewardModel(failure_rate=0.05))
    result = run(make_job(rollart(1)), world)
    failed = {e["id"] for e in data(result, "attempt.end") if e["end"] in ("infra-failed", "reward-failed")}
    assert failed, "the world is meant to fail sometimes"
    assert not failed & {trajectory.id for trajectory in trained(result)}


def test_a_dead_engine_costs_time_but_no_attempt() -> None:
    job, world = make_job(rollart(1)), World(environment=UNEVEN, token_seconds=constant(0.1))
    whole = run(job, world)
    broken = run(job, replace(world, outages=(Outage("engine", 0, 2.0, 10.0),)))
    assert broken.witness.redrawn.total() > 0
    assert set(broken.loop.scheduler.ledger.attempts) == {"trained"}
    assert whole.seconds + 5 < broken.seconds < whole.seconds + 15


def test_a_dead_host_costs_its_episodes_and_no_task() -> None:
    world = World(environment=UNEVEN, hosts=2, outages=(Outage("host", 1, 1.0, 4.0),))
    result = run(make_job(rollart(1)), world)
    ledger = result.loop.scheduler.ledger
    assert ledger.attempts["infra-failed"] == 4, "half of the eight environments were on it"
    assert set(ledger.tasks) == {"trained"}


def test_evaluation_is_pinned_and_outside_the_books() -> None:
    world = World(environment=EnvironmentModel(turns=lambda rng: 3, step_seconds=constant(2.0)))
    result = run(make_job(rollart(2), evaluate=3), world)
    evaluated = [row["eval/version"] for row in result.rows if "eval/version" in row]
    assert evaluated == [0, 3, 6]
    assert result.loop.scheduler.ledger.admitted >= 24
    assert not any("eval" in attempt for attempt in result.loop.scheduler.ledger.open_attempts)
    commits = {e.data["version"]: e.time for e in result.recorder.named("weights.commit")}
    for event in result.recorder.named("eval.end"):
        following = commits.get(int(event.data["version"]) + 1)  # type: ignore[arg-type]
        assert following is None or following >= event.time


def test_an_error_while_a_report_is_booked_ends_the_run_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports arrive in callbacks; what goes wrong there must not turn into a wait for ever."""

    def broken(*_: Any) -> None:
        raise LedgerError("the books do not balance")

    monkeypatch.setattr(RolloutScheduler, "_member_ended", broken)
    with pytest.raises(ExceptionGroup) as caught:
        run(make_job(rollart(1)), World())
    assert caught.group_contains(LedgerError, match="do not balance")


def test_weights_travel_beside_training() -> None:
    """A step takes as long as training or as a version's way to the engines, whichever is longer, not both."""
    instant = World(environment=EnvironmentModel(turns=lambda rng: 1), answer_tokens=lambda rng: 1)
    for train, travel in ((10.0, 8.0), (8.0, 10.0)):
        world = replace(instant, train_seconds=constant(train), sync=SyncModel(prepare=constant(travel)))
        seconds = {
            kind: run(make_job(pipeline, steps=12), world).rows[-1]["time/step"]
            for kind, pipeline in (("sync+", {"type": "sync+"}), ("rollart", rollart(2)))
        }
        assert seconds["sync+"] == pytest.approx(18.0, abs=0.5)
        assert seconds["rollart"] == pytest.approx(10.0, abs=0.5)


@pytest.mark.parametrize("alpha", [0, 1, 3])
def test_nothing_is_begun_that_no_step_will_train(alpha: int) -> None:
    """What the last checkpoint says of open tasks is true when the run has ended."""
    result = run(
        make_job(rollart(alpha), save=1), World(sync=SyncModel(prepare=constant(0.4)), save_seconds=constant(2.0))
    )
    kept = DriverState.load(result.trainer.saved["step-6"]).scheduler.ledger
    named = {
        name: [e.data["group"] for e in result.recorder.events if e.name == name]
        for name in ("group.admit", "task.end")
    }
    assert set(named["group.admit"]) - set(named["task.end"]) == set(kept.open_tasks)
