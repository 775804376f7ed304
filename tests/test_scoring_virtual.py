"""Rewards that take time, on the virtual clock: they hold no slot, come once, and outlive hosts and runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.world.durations import constant, lognormal, normal
from tests.world.environment import EnvironmentModel, RewardModel
from tests.world.faults import Outage
from tests.world.hosts import TransportModel
from tests.world.world import SimulatedRun, World

from rollweave.config.job import Job
from rollweave.errors import RewardFailed
from rollweave.observability.events import MemoryRecorder
from rollweave.pipelines.checkpoints import DriverState
from rollweave.rewards.dispatch import Scored
from rollweave.rollout.scoring import Scoring
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Trajectory
from test_pipelines_virtual import many
from virtual_oracles import check_everything, check_resumed, data, joined, trained
from virtual_worlds import jobs, make_job, rollart, run, worlds

EPISODE = EnvironmentModel(turns=lambda rng: 2, step_seconds=constant(1.0))
SLOW = World(environment=EPISODE, reward=RewardModel(constant(5.0)))
CROWDED: dict[str, Any] = {"groups_per_step": 4, "group_size": 3, "environments": 6}
"""Twice as many members as slots."""


def times(result: SimulatedRun, name: str) -> list[float]:
    return [event.time for event in result.recorder.named(name)]


def before_the_first_batch(result: SimulatedRun, name: str) -> list[float]:
    ready = times(result, "batch.ready")[0]
    return [time for time in times(result, name) if time <= ready]


# ------------------------------------------------------------------------------------------------------- the slot


@pytest.mark.parametrize("pipeline", [{"type": "sync+"}, rollart(0), rollart(1)], ids=str)
def test_a_slow_reward_holds_no_environment(pipeline: dict[str, Any]) -> None:
    """Twelve members on six slots: every episode begins when it would begin with a reward that takes no time."""
    instant, slow = (run(make_job(pipeline, **CROWDED), world) for world in (replace(SLOW, reward=RewardModel()), SLOW))
    begun = [before_the_first_batch(result, "episode.begin") for result in (instant, slow)]
    assert len(begun[0]) >= 12
    assert begun[1][: len(begun[0])] == begun[0]
    assert sum(time < times(slow, "reward.end")[0] for time in begun[1]) >= 12


def test_sync_keeps_its_blocking_reward_as_the_baseline() -> None:
    blocking = run(make_job({"type": "sync"}, **CROWDED), SLOW)
    free = run(make_job({"type": "sync"}, **CROWDED), replace(SLOW, reward=RewardModel()))
    assert not times(blocking, "reward.begin")
    assert times(blocking, "episode.end")[0] == times(free, "episode.end")[0] + 5.0


@pytest.mark.parametrize("alpha", [0, 1, 2])
def test_groups_that_are_being_scored_count_as_running_ones(alpha: int) -> None:
    """All episodes are over long before the first reward: no more may be admitted than (1 + alpha) batches."""
    world = World(environment=EnvironmentModel(turns=lambda rng: 1), reward=RewardModel(constant(50.0)))
    result = run(make_job(rollart(alpha), environments=200), world)
    assert len(before_the_first_batch(result, "group.admit")) == (1 + alpha) * 4
    check_everything(make_job(rollart(alpha), environments=200), world, result)


def test_a_group_that_is_being_scored_is_as_old_as_its_tokens() -> None:
    """An update does not make it younger, though none of its members is played or finished any more."""
    job = make_job(rollart(1), steps=12, group_size=2, environments=40)
    world = World(environment=EPISODE, reward=RewardModel(lognormal(2.0, 2.0)), train_seconds=constant(0.5))
    check_everything(job, world, run(job, world))


def test_an_evaluation_waits_for_its_rewards_but_not_in_the_slots() -> None:
    world = replace(SLOW, reward=RewardModel(constant(50.0)))
    result = run(make_job({"type": "sync+"}, evaluate=2, environments=1, steps=2, groups_per_step=1), world)
    evaluated = [event for event in data(result, "reward.begin") if event["group"] == -1]
    assert len(evaluated) == 2 * 3
    began = [e.time for e in result.recorder.named("episode.begin") if e.data["group"] == -1][:3]
    came = [e.time for e in result.recorder.named("reward.end") if str(e.data["id"]).startswith("eval")]
    assert began[2] < came[0], "one environment plays three episodes before the first reward"
    assert [row["eval/version"] for row in result.rows if "eval/version" in row] == [0, 2]


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_a_host_that_dies_while_it_scores_costs_no_episode() -> None:
    """All episodes are over before 3 s; the host that holds half of them dies at 4 s, their rewards are due at 7 s."""
    job = make_job({"type": "sync+"}, steps=1, environments=12)
    world = replace(SLOW, hosts=2, outages=(Outage("host", 1, 4.0, 2.0),))
    result = run(job, world)
    check_everything(job, world, result)
    again = data(result, "reward.again")
    assert len(again) == 6 and {event["host"] for event in again} == {0}, "six were on it, and the other host took them"
    assert len(times(result, "episode.begin")) == 12
    assert result.loop.scheduler.ledger.attempts == {"trained": 12}
    assert result.rows[-1]["scoring/again"] == 6


def test_without_any_host_a_reward_waits_for_the_next_one() -> None:
    job, world = make_job({"type": "sync+"}, steps=1), replace(SLOW, outages=(Outage("host", 0, 6.0, 10.0),))
    result = run(job, world)
    check_everything(job, world, result)
    assert data(result, "reward.again") and result.seconds > 16.0


def test_a_reward_whose_hosts_die_again_and_again_has_failed() -> None:
    """The only host dies every 4 s, and a reward takes 5: after three deaths those of the first groups are given up."""
    job = make_job({"type": "sync+"}, steps=1, environments=12, max_retries=2)
    world = replace(SLOW, outages=tuple(Outage("host", 0, 4.0 + 4 * n, 0.0) for n in range(3)))
    result = run(job, world)
    check_everything(job, world, result)
    causes = [event["cause"] for event in data(result, "reward.end") if event["reward"] is None]
    assert causes == ["its host died while it was scored, 3 times"] * 12
    assert result.loop.scheduler.ledger.attempts == {"reward-failed": 12, "trained": 12}


def test_a_reward_that_always_fails_stops_the_run_with_its_own_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run(make_job(rollart(1)), replace(SLOW, reward=RewardModel(constant(5.0), failure_rate=1.0)))
    assert caught.group_contains(RewardFailed, match="injected failure")


def test_failing_environments_are_not_taken_for_hopeless_while_the_first_rewards_are_computed() -> None:
    """Many attempts fail before the first reward is there, but some episodes were played to their end."""
    faulty = EnvironmentModel(turns=lambda rng: 2, failure_rate=0.2)
    world = World(environment=faulty, reward=RewardModel(constant(50.0)))
    job = make_job(rollart(1), steps=2, environments=24, retry_backoff=0.0, max_retries=10)
    result = run(job, world)
    first = times(result, "reward.end")[0]
    failed = [e for e in result.recorder.named("attempt.end") if e.time < first and e.data["end"] == "infra-failed"]
    assert len(failed) >= 16, "the world is meant to fail often enough"
    check_everything(job, world, result)


def test_a_redundant_member_steps_in_where_a_reward_fails() -> None:
    """Surplus members are cancelled when enough are scored: if enough were played, groups would be small."""
    job = make_job(rollart(1), redundant_members=2, environments=40)
    world = replace(SLOW, reward=RewardModel(constant(5.0), failure_rate=0.2))
    result = run(job, world)
    check_everything(job, world, result)
    assert result.loop.scheduler.ledger.attempts["reward-failed"] > 5
    sizes = [len(group.members) for batch in result.trainer.batches for group in batch.groups]
    assert sizes.count(3) > len(sizes) * 0.8


def test_a_group_that_is_given_up_forgets_its_rewards_and_late_answers_are_counted() -> None:
    uneven = EnvironmentModel(turns=lambda rng: 1, step_seconds=lognormal(0.5, 1.5))
    world = World(
        environment=uneven,
        reward=RewardModel(lognormal(3.0, 1.0)),
        train_seconds=constant(0.1),
        transport=TransportModel(constant(0.4)),
    )
    job = make_job(rollart(1, policy="drop"), steps=12, environments=40)
    result = run(job, world)
    check_everything(job, world, result)
    scored = {event["id"] for event in data(result, "reward.end")}
    given_up = {event["id"] for event in data(result, "reward.begin")} - scored - result.loop.scheduler.ledger.scoring
    assert given_up and not given_up & {trajectory.id for trajectory in trained(result)}
    late = len(data(result, "reward.late"))
    assert 0 < late < len(given_up), "most are told in time that nothing waits for them any more"
    assert 0 < sum(int(row["scoring/late"]) for row in result.rows) <= late  # type: ignore[call-overload]


# --------------------------------------------------------------------------------------------------------- properties

rewards = st.sampled_from(
    [
        RewardModel(constant(5.0)),
        RewardModel(lognormal(3.0, 1.5)),
        RewardModel(normal(0.2, 0.2), failure_rate=0.05, hang_rate=0.02),
        RewardModel(lognormal(1.0, 1.0), failure_rate=0.2),
    ]
)
scoring_worlds = st.builds(lambda world, reward: replace(world, reward=reward), worlds, rewards)


@pytest.mark.timeout(900)
@many(250)
@given(jobs(), scoring_worlds)
def test_every_invariant_holds_whatever_befalls_rewards(job: Job, world: World) -> None:
    check_everything(job, world, run(job, world))


@pytest.mark.timeout(900)
@many(150)
@given(jobs(steps=5, save=st.just(1)), scoring_worlds, st.integers(1, 4))
def test_a_run_that_is_cut_while_it_scores_loses_and_repeats_nothing(job: Job, world: World, cut: int) -> None:
    first = run(job, world)
    second = run(job, world, resume=first.trainer.saved[f"step-{cut}"])
    check_resumed(job, world, joined(first, cut, second))


@pytest.mark.slow
@pytest.mark.timeout(900)
@many(1000)
@given(jobs(steps=6), scoring_worlds)
def test_every_invariant_holds_in_many_more_scoring_worlds(job: Job, world: World) -> None:
    check_everything(job, world, run(job, world))


def test_a_checkpoint_keeps_what_is_being_scored_and_the_next_run_scores_it_without_playing_it_again() -> None:
    job = make_job(rollart(1), steps=4, save=1, environments=40)
    world = World(environment=EPISODE, reward=RewardModel(lognormal(5.0, 0.5)))
    first = run(job, world)
    saved = first.trainer.saved["step-1"]
    state = DriverState.load(saved).scheduler
    kept = {attempt for group in state.open for attempt in group.scoring}
    assert kept and kept <= set(state.ledger.open_attempts)
    second = run(job, world, resume=saved)
    assert kept <= {event["id"] for event in data(second, "reward.begin")}
    assert kept <= {trajectory.id for trajectory in trained(second)}
    assert not kept & {event["id"] for event in data(second, "episode.begin")}


# ---------------------------------------------------------------------------------------------------------- the driver


class Told:
    """A reward back end that answers when and as often as the test says."""

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[Scored], None]] = {}
        self.given_up: list[str] = []

    def call(self, trajectory: Trajectory, holder: int | None, done: Callable[[Scored], None]) -> None:
        self.calls[trajectory.id] = done

    def give_up(self, attempt: str) -> None:
        self.given_up.append(attempt)

    def answer(self, attempt: str, **answer: Any) -> None:
        self.calls[attempt](Scored(attempt, **answer))


def scoring() -> tuple[Scoring, Told, list[tuple[str, float, bool]], MemoryRecorder]:
    told, recorder = Told(), MemoryRecorder()
    heard: list[tuple[str, float, bool]] = []
    made = Scoring(told, recorder)
    for member in range(3):
        trajectory = Trajectory(f"0.{member}.0", 0, member, Task("t/0", "t", 0), outcome=Outcome.FINISHED)
        made.score(trajectory, 0, ("judge",), lambda t, succeeded: heard.append((t.id, t.reward, succeeded)))
    return made, told, heard, recorder


def test_each_trajectory_is_answered_once_however_often_its_reward_comes() -> None:
    _, told, heard, recorder = scoring()
    told.answer("0.1.0", rewards={"judge": 0.5})
    told.answer("0.1.0", rewards={"judge": 0.7})
    told.answer("0.0.0", failure="no score today")
    told.answer("0.0.0", rewards={"judge": 0.9})
    assert heard == [("0.1.0", 0.5, True), ("0.0.0", 0.0, False)]
    assert [event.data["id"] for event in recorder.named("reward.late")] == ["0.1.0", "0.0.0"]


def test_what_is_forgotten_is_given_up_and_not_answered() -> None:
    made, told, heard, recorder = scoring()
    made.forget("0.2.0")
    told.answer("0.2.0", rewards={"judge": 1.0})
    assert (told.given_up, heard) == (["0.2.0"], [])
    assert [event.data["id"] for event in recorder.named("reward.late")] == ["0.2.0"]
