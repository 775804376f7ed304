"""The oracles of `virtual_oracles` notice: each is shown a control plane that was broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.world.durations import constant, lognormal
from tests.world.engine import SimulatedEngine
from tests.world.environment import EnvironmentModel, RewardModel
from tests.world.faults import Outage
from tests.world.world import World

import virtual_oracles as oracles
from rollweave.clock import Deadlock
from rollweave.config.control import CheckpointConfig
from rollweave.config.job import Job
from rollweave.errors import first_cause
from rollweave.fleet.fleet import EngineEntry
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.meters import TokenBooks
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.groups import Leasing, RunningGroup
from rollweave.rollout.ledger import AttemptEnd, Ledger
from rollweave.rollout.link import Report
from rollweave.rollout.manager import EnvManager
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.rollout.staleness import SampleBuffer, StalenessBound
from rollweave.rollout.state import SchedulerState
from rollweave.tasks import Cursor, Task
from rollweave.trajectory import Batch, Outcome, Span, Trajectory
from rollweave.weights.buckets import Fingerprint
from virtual_worlds import make_job, rollart, run

Patch = Callable[[pytest.MonkeyPatch], None]

HEAVY = World(
    environment=EnvironmentModel(turns=lambda rng: rng.randint(1, 3), step_seconds=lognormal(0.3, 2.0)),
    token_seconds=constant(0.1),
    train_seconds=constant(0.1),
)
UNSCORED = World(reward=RewardModel(constant(1.0), failure_rate=0.2))
FAILING = World(environment=EnvironmentModel(turns=lambda rng: 3, failure_rate=0.1))
DYING = World(hosts=2, outages=(Outage("host", 0, 0.05, 2.0),))


def job(pipeline: dict[str, Any]) -> Job:
    patience = {"env_step": 1e6, "get_batch": 1e5}
    return make_job(pipeline, steps=10, groups_per_step=3, group_size=2, environments=30, deadlines=patience)


# -------------------------------------------------------------------------------------------------- broken on purpose


def retokenise(patch: pytest.MonkeyPatch) -> None:
    honest = Trajectory.answer

    def answer(self: Trajectory, spans: list[Span], text: str, finish: str) -> None:
        for span in spans:
            span.tokens = (span.tokens + 1) % 256
        honest(self, spans, text, finish)

    patch.setattr(Trajectory, "answer", answer)


def call_it_fresh(patch: pytest.MonkeyPatch) -> None:
    honest = Trajectory.answer

    def answer(self: Trajectory, spans: list[Span], text: str, finish: str) -> None:
        for span in spans:
            span.version = spans[-1].version
        honest(self, spans, text, finish)

    patch.setattr(Trajectory, "answer", answer)


def answers_survive_updates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedEngine, "_begin_anew", lambda self: None)


def never_look_at_age(patch: pytest.MonkeyPatch) -> None:
    honest = SampleBuffer.select
    patch.setattr(SampleBuffer, "select", lambda self, *args, **_: honest(self, *args[:3], start_only=True))
    patch.setattr(SampleBuffer, "left_over", lambda self, step: [])
    patch.setattr(SampleBuffer, "has_batch_in_order", lambda self, running: True)
    patch.setattr(RolloutScheduler, "_check_staleness", lambda self, batch: None)


def one_too_many(patch: pytest.MonkeyPatch) -> None:
    honest = StalenessBound.room
    patch.setattr(StalenessBound, "room", lambda self, *args: honest(self, *args) + 1)


def skip_a_task(patch: pytest.MonkeyPatch) -> None:
    honest = Cursor.next

    def skipping(self: Cursor) -> Task:
        self.position += self.position % 7 == 6
        return honest(self)

    patch.setattr(Cursor, "next", skipping)


def train_twice(patch: pytest.MonkeyPatch) -> None:
    honest, end_group = RolloutScheduler.get_batch, RolloutScheduler._end_group

    async def get_batch(self: RolloutScheduler, step: int) -> Batch:
        batch = await honest(self, step)
        if step == 0:
            self.buffer.put(batch.groups[0])
        return batch

    def forgiving(self: RolloutScheduler, id: int, *args: Any) -> None:
        if id in self.ledger.open_tasks:
            end_group(self, id, *args)

    patch.setattr(RolloutScheduler, "get_batch", get_batch)
    patch.setattr(RolloutScheduler, "_end_group", forgiving)


def forget_failures(patch: pytest.MonkeyPatch) -> None:
    honest = Ledger.end_attempt

    def end_attempt(self: Ledger, attempt: str, end: AttemptEnd, tokens: int) -> None:
        if end is not AttemptEnd.INFRA_FAILED:
            honest(self, attempt, end, tokens)

    patch.setattr(Ledger, "end_attempt", end_attempt)


def book_too_little(patch: pytest.MonkeyPatch) -> None:
    honest = Ledger.end_attempt
    patch.setattr(Ledger, "end_attempt", lambda self, attempt, end, tokens: honest(self, attempt, end, tokens // 2))


def hide_waste(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TokenBooks, "book", lambda self, attempt, end, tokens: None)


def failures_score_zero(patch: pytest.MonkeyPatch) -> None:
    honest = EnvManager._fail

    def fail(self: EnvManager, error: Exception) -> None:
        honest(self, error)
        if self.trajectory.sampled_tokens:
            self.trajectory.outcome = Outcome.TRUNCATED

    patch.setattr(EnvManager, "_fail", fail)


def ask_for_a_reward_within_the_slot(patch: pytest.MonkeyPatch) -> None:
    def end(self: Dispatcher, report: Report) -> None:
        party = self._parties.pop(report.attempt)
        lease = party.leases.pop(report.attempt)
        party.on_report(lease, report)
        if party.seat is not None:
            del party.seat.playing[report.attempt]
            party.seat.used -= party.size
            self._tell("episode.end", lease)

    patch.setattr(Dispatcher, "_end", end)


def take_failures_for_rewards(patch: pytest.MonkeyPatch) -> None:
    honest = RolloutScheduler._book_reward

    def book(self: RolloutScheduler, trajectory: Trajectory, succeeded: bool) -> None:
        honest(self, trajectory, True)

    patch.setattr(RolloutScheduler, "_book_reward", book)


def do_not_verify(patch: pytest.MonkeyPatch) -> None:
    async def prepare(self: WeightSync, entry: EngineEntry, pushed: Fingerprint) -> Fingerprint:
        entry.staged = pushed.version
        return pushed

    patch.setattr(WeightSync, "_prepare", prepare)
    patch.setattr("rollweave.simulation.hardware.modelled.refuse_unprepared", lambda version, staged: None)


def give_up_on_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RolloutScheduler, "_expendable", lambda self, group: True)
    patch.setattr(SampleBuffer, "has_batch_in_order", lambda self, running: True)


def forget_a_group(patch: pytest.MonkeyPatch) -> None:
    admit, issue = RolloutScheduler._admit_group, Leasing.issue

    def forgetful_admit(self: RolloutScheduler) -> None:
        admit(self)
        self.running.pop(10, None)

    def forgetful_issue(self: Leasing, group: RunningGroup, *args: Any, **more: Any) -> None:
        if group.id != 10:
            issue(self, group, *args, **more)

    patch.setattr(RolloutScheduler, "_admit_group", forgetful_admit)
    patch.setattr(Leasing, "issue", forgetful_issue)


WAIT, REQUEUE = rollart(1), rollart(1, policy="requeue", max_requeues=0)


@pytest.mark.parametrize(
    ("broken", "pipeline", "world", "oracle"),
    [
        (retokenise, WAIT, HEAVY, oracles.trained_tokens_are_the_sampled_ones),
        (call_it_fresh, WAIT, HEAVY, oracles.trained_tokens_are_the_sampled_ones),
        (
            answers_survive_updates,
            rollart(1, in_flight="restart_turn"),
            HEAVY,
            oracles.trained_tokens_are_the_sampled_ones,
        ),
        (never_look_at_age, WAIT, HEAVY, oracles.staleness_is_bounded),
        (never_look_at_age, rollart(0.5), HEAVY, oracles.staleness_is_bounded),
        (forget_a_group, WAIT, HEAVY, oracles.no_task_is_forgotten),
        (one_too_many, WAIT, HEAVY, oracles.admission_follows_the_rule),
        (skip_a_task, WAIT, HEAVY, oracles.tasks_end_once),
        (train_twice, WAIT, HEAVY, oracles.batches_are_whole),
        (forget_failures, WAIT, FAILING, oracles.attempts_end_once),
        (ask_for_a_reward_within_the_slot, WAIT, UNSCORED, oracles.rewards_come_once),
        (take_failures_for_rewards, WAIT, UNSCORED, oracles.rewards_come_once),
        (book_too_little, WAIT, HEAVY, oracles.tokens_are_booked),
        (hide_waste, WAIT, FAILING, oracles.waste_is_reported),
        (failures_score_zero, WAIT, FAILING, oracles.failures_are_no_rewards),
        (do_not_verify, WAIT, HEAVY, oracles.weights_change_when_all_have_them),
        (give_up_on_everybody, WAIT, HEAVY, oracles.policy_is_kept),
        (give_up_on_everybody, REQUEUE, HEAVY, oracles.policy_is_kept),
    ],
)
def test_the_oracle_notices(
    broken: Patch, pipeline: dict[str, Any], world: World, oracle: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"job": job(pipeline), "world": world}
    arguments = [*(asked[name] for name in oracle.__annotations__ if name in asked)]
    oracle(*arguments, run(asked["job"], world))  # the honest one passes
    broken(monkeypatch)
    result = run(asked["job"], world)
    with pytest.raises(AssertionError):
        oracle(*arguments, result)


def forget_what_was_finished(state: SchedulerState) -> None:
    state.buffered = []


def forget_what_was_open(state: SchedulerState) -> None:
    state.open = []


def begin_again_a_little_earlier(state: SchedulerState) -> None:
    state.cursor -= 1


def begin_again_a_little_later(state: SchedulerState) -> None:
    state.cursor += 1


def play_the_finished_again(state: SchedulerState) -> None:
    """Their attempts are counted anew: those of the first life are issued once more."""
    for group in state.open:
        group.tries = {}


@pytest.mark.parametrize(
    "broken",
    [
        forget_what_was_finished,
        forget_what_was_open,
        begin_again_a_little_earlier,
        begin_again_a_little_later,
        play_the_finished_again,
    ],
)
def test_resuming_wrongly_is_noticed(broken: Callable[[SchedulerState], None], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = job(rollart(2)).model_copy(update={"checkpoint": CheckpointConfig(every=1)})
    first, cut = run(asked, HEAVY), 4
    saved = first.trainer.saved[f"step-{cut}"]
    oracles.check_resumed(asked, HEAVY, oracles.joined(first, cut, run(asked, HEAVY, saved)))
    honest = RolloutScheduler.restore

    def restore(self: RolloutScheduler, state: SchedulerState) -> None:
        broken(state)
        honest(self, state)

    monkeypatch.setattr(RolloutScheduler, "restore", restore)
    with pytest.raises((AssertionError, ExceptionGroup)):
        oracles.check_resumed(asked, HEAVY, oracles.joined(first, cut, run(asked, HEAVY, saved)))


def test_the_clock_notices_a_lease_that_nobody_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead host's episodes are forgotten: the run waits for ever, which the virtual clock does not."""

    def forget(self: Dispatcher, link: Any) -> None:
        self._seats = {number: seat for number, seat in self._seats.items() if seat.link is not link}
        link.close()

    monkeypatch.setattr(Dispatcher, "detach", forget)
    impatient = make_job(WAIT, deadlines={"get_batch": 1e5})
    with pytest.raises((ExceptionGroup, Deadlock)) as caught:
        run(impatient, DYING)
    assert "waits for" in str(first_cause(caught.value) if isinstance(caught.value, ExceptionGroup) else caught.value)
