"""A trainer dies at any moment and goes back to its checkpoint; engines and hosts live on. On the virtual clock."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.world.durations import constant, lognormal
from tests.world.engine import SyncModel
from tests.world.environment import EnvironmentModel, RewardModel
from tests.world.faults import Outage
from tests.world.hosts import TransportModel
from tests.world.world import SimulatedRun, World

from rollweave.config.job import Job
from rollweave.errors import WorkerDied
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.events import Event
from rollweave.observability.jsonl import encode
from rollweave.rollout.ledger import AttemptEnd, Ledger, LedgerState, TaskEnd
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.rollout.state import SchedulerState
from rollweave.simulation.recorded.replay import replay
from rollweave.tasks import SeedSource
from rollweave.versions import Version
from test_fleet_virtual import LOSSY, PIPELINES, SLOW_UPDATES
from test_pipelines_virtual import many
from virtual_oracles import check_gone_back
from virtual_worlds import jobs, make_job, run, worlds

deaths = st.lists(
    st.builds(Outage, st.just("trainer"), st.just(0), st.floats(0.0, 20.0), st.sampled_from([0.0, 0.5, 4.0])),
    min_size=1,
    max_size=3,
)
others = st.lists(
    st.builds(
        Outage,
        st.sampled_from(["engine", "host", "join", "leave"]),
        st.integers(0, 5),
        st.floats(0.0, 20.0),
        st.sampled_from([0.0, 0.5, 4.0]),
    ),
    max_size=3,
)


@many(40)
@given(
    deaths,
    others,
    st.sampled_from([*PIPELINES, {"type": "rollart", "alpha": 2, "in_flight": "keep"}]),
    st.sampled_from([0, 1, 2, 3]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([TransportModel(), LOSSY]),
    st.sampled_from([RewardModel(), RewardModel(lognormal(0.6, 1.0))]),
    st.sampled_from([SyncModel(), SLOW_UPDATES]),
    st.sampled_from([0, 2]),
)
def test_the_trainer_goes_back_at_any_moment_and_the_books_stay_exact(
    dying: list[Outage],
    befalling: list[Outage],
    pipeline: dict[str, Any],
    save: int,
    engines: int,
    hosts: int,
    transport: TransportModel,
    reward: RewardModel,
    sync: SyncModel,
    evaluate: int,
) -> None:
    job = make_job(pipeline, seed=len(befalling), steps=6, save=save, evaluate=evaluate)
    world = World(
        engines=engines,
        hosts=hosts,
        transport=transport,
        outages=(*dying, *befalling),
        sync=sync,
        reward=reward,
        token_seconds=constant(0.1),
        save_seconds=constant(0.3),
        environment=EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=lognormal(0.2, 1.0)),
    )
    result = run(job, world)
    check_gone_back(job, world, result)
    comes_out_again(job, result)


@many(80)
@given(jobs(save=st.sampled_from([0, 1, 2, 3]), steps=5), worlds, deaths)
def test_in_every_mode_and_under_every_fault(job: Job, world: World, dying: list[Outage]) -> None:
    world = replace(world, outages=(*world.outages, *dying))
    result = run(job, world)
    check_gone_back(job, world, result)
    comes_out_again(job, result)


def comes_out_again(job: Job, result: SimulatedRun) -> None:
    """The replay goes back where the run did."""
    events = [Event(e.time, e.name, json.loads(encode(e.data))) for e in result.recorder.events]
    last = max(n for n, event in enumerate(events) if event.name == "step.end")
    replayed = replay(job, SeedSource("simulated", job.seed), events[: last + 1])
    assert replayed.difference is None, str(replayed.difference)


# ------------------------------------------------------------------------------------------------------ single cases

WORLD = World(engines=2, hosts=2, token_seconds=constant(0.1), sync=SLOW_UPDATES, train_seconds=constant(2.0))


LATE = 18.0
"""Steps have been trained since the checkpoint of version 3."""


def killed(at: float, pipeline: dict[str, Any] | None = None, save: int = 2) -> tuple[Job, World, SimulatedRun]:
    job = make_job(pipeline or {"type": "rollart", "alpha": 1}, 3, save=save)
    world = replace(WORLD, outages=(Outage("trainer", 0, at, 1.0),))
    return job, world, run(job, world)


def test_without_a_checkpoint_it_goes_back_to_its_start() -> None:
    job, world, result = killed(9.0, save=0)
    check_gone_back(job, world, result)
    (back,) = result.recorder.named("run.back")
    assert (back.data["version"], back.data["history"]) == (0, 1)
    assert result.loop.weights.version == Version.of(1, 6)
    assert {engine.number for engine in result.engines} == {0, 1}, "no engine was replaced"


def test_what_was_trained_since_the_checkpoint_counts_as_aborted() -> None:
    job, world, result = killed(LATE, save=3)
    check_gone_back(job, world, result)
    (back,) = result.recorder.named("run.back")
    assert back.data["version"] == 3
    undone = [event for event in result.recorder.named("batch.ready") if event.time < back.time]
    assert len(undone) > 3, "a step was trained in vain"
    (books,) = result.recorder.named("attempts.undone")
    assert books.data["ends"]["trained"] > 0  # type: ignore[index, call-overload]
    assert result.loop.scheduler.ledger.attempts["aborted"] >= books.data["aborted"] > 0  # type: ignore[index, operator]


def test_a_trainer_that_always_dies_ends_the_run_with_its_cause() -> None:
    job = make_job({"type": "sync+"}, 3)
    outages = tuple(Outage("trainer", 0, float(at), 0.0) for at in range(1, 40))
    with pytest.raises(ExceptionGroup) as raised:
        run(job, World(outages=outages, train_seconds=constant(1.5)))
    assert raised.group_contains(WorkerDied, match="the trainer was killed", depth=None)


# ------------------------------------------------------------------------------------------- the oracles can notice


def same_ids_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("rollweave.rollout.groups.marked", lambda id, history: id)


def forget_what_was_tried(patch: pytest.MonkeyPatch) -> None:
    honest = Ledger.restore
    patch.setattr(Ledger, "go_back", lambda self, kept, spared: honest(self, kept))


def keep_what_is_being_trained(patch: pytest.MonkeyPatch) -> None:
    honest = RolloutScheduler.go_back

    def go_back(self: RolloutScheduler, state: SchedulerState) -> None:
        held = self._in_training
        honest(self, state)
        for group in held:
            state.buffered.append(group)

    patch.setattr(RolloutScheduler, "go_back", go_back)


def leave_the_engines_where_they_are(patch: pytest.MonkeyPatch) -> None:
    async def go_back(self: WeightSync, number: int, history: int) -> None:
        self.fleet.version = Version.of(0, number)
        self._offered = None

    patch.setattr(WeightSync, "go_back", go_back)


def lose_a_task(patch: pytest.MonkeyPatch) -> None:
    honest = RolloutScheduler.go_on

    def go_on(self: RolloutScheduler, state: SchedulerState, history: int) -> None:
        state.cursor += 1
        honest(self, state, history)

    patch.setattr(RolloutScheduler, "go_on", go_on)


@pytest.mark.parametrize(
    "broken",
    [same_ids_again, forget_what_was_tried, keep_what_is_being_trained, leave_the_engines_where_they_are, lose_a_task],
)
def test_going_back_wrongly_is_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_gone_back(*killed(LATE, save=3))
    broken(monkeypatch)
    with pytest.raises((AssertionError, ExceptionGroup, RuntimeError)):
        check_gone_back(*killed(LATE, save=3))


# --------------------------------------------------------------------------------------------------------- the name


def test_a_version_is_an_integer_that_knows_its_history() -> None:
    first, again = Version.of(0, 7), Version.of(1, 7)
    assert first == 7 and first != again and (again.history, again.number) == (1, 7)
    assert Version.of(0, 10**9) < Version.of(1, 0) < Version.of(1, 1)
    assert (f"{first}", f"{again}") == ("7", "7 of history 1")
    assert pickle.loads(pickle.dumps(again)) == json.loads(json.dumps(again)) == again
    assert Version(json.loads(json.dumps(again))).history == 1
    assert Version.of(2, -1) < Version.of(2, 0)


def test_the_ledger_counts_what_was_undone() -> None:
    """One attempt is kept and was trained since, one was trained since, one is still being cancelled."""
    ledger = Ledger(_Silent())
    for group in (0, 1):
        ledger.admit(group)
    for attempt in ("0.0.0", "1.0.0"):
        ledger.issue(attempt)
    ledger.end_attempt("1.0.0", AttemptEnd.TRAINED, 5)
    ledger.end_task(1, TaskEnd.TRAINED)
    kept = LedgerState(**{name: getattr(ledger.state(), name) for name in LedgerState.__dataclass_fields__})
    ledger.admit(2)
    ledger.issue("2.0.0")
    ledger.issue("2.1.0")
    ledger.end_attempt("0.0.0", AttemptEnd.TRAINED, 3)
    ledger.end_attempt("2.0.0", AttemptEnd.TRAINED, 4)
    ledger.go_back(kept, {"0.0.0": 3})
    assert ledger.attempts == {"trained": 1, "aborted": 1} and ledger.tokens == {"trained": 5, "aborted": 4}
    assert ledger.open_attempts == {"0.0.0", "2.1.0"} and ledger.open_tasks == {0}
    assert (ledger.admitted, ledger.issued) == (2, 4)


class _Silent:
    def emit(self, name: str, /, **data: Any) -> None:
        pass
