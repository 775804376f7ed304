"""The pieces of the producer, one at a time, on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.world.durations import constant, lognormal
from tests.world.engine import SimulatedEngine
from tests.world.environment import ByteDialogue, StepRewards
from tests.world.hosts import SimulatedTransport, TransportModel

from fleets import proxy_of
from rollweave.clock import Clock, run_virtual
from rollweave.config.control import Deadlines, RolloutConfig
from rollweave.engines.protocol import Completion, Engine, Request, Sampling
from rollweave.environments.protocol import Observation, StepResult
from rollweave.errors import EnvironmentFailed, RewardFailed
from rollweave.observability.events import MemoryRecorder
from rollweave.rollout.ledger import AttemptEnd, Ledger, LedgerError, TaskEnd
from rollweave.rollout.link import CONFIRM_SECONDS, Endpoint, Lease, Packet, Report
from rollweave.rollout.manager import EnvManager, Stage, TurnBarrier
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Trajectory
from spans import request_of

TASK = Task("t/0", "t", 7)

# ------------------------------------------------------------------------------------------------------ ledgers


def test_a_thing_ends_once_and_only_if_it_began() -> None:
    ledger = Ledger(MemoryRecorder())
    ledger.admit(1)
    ledger.end_task(1, TaskEnd.TRAINED)
    with pytest.raises(LedgerError):
        ledger.end_task(1, TaskEnd.FAILED)
    with pytest.raises(LedgerError):
        ledger.end_attempt("1.0.0", AttemptEnd.TRAINED, 5)
    ledger.check()


def test_tokens_are_booked_on_attempts_and_the_counts_add_up() -> None:
    ledger = Ledger(MemoryRecorder())
    for attempt in ("a", "b", "c"):
        ledger.issue(attempt)
    ledger.end_attempt("a", AttemptEnd.TRAINED, 10)
    ledger.end_attempt("b", AttemptEnd.INFRA_FAILED, 3)
    summary = ledger.summary()
    assert summary["attempts"]["open"] == 1
    assert summary["tokens"]["infra-failed"] == 3
    ledger.check()
    ledger.issued += 1
    with pytest.raises(LedgerError):
        ledger.check()


# -------------------------------------------------------------------------------------------------------- links


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=3), max_size=20),
    st.floats(0, 0.6),
    st.floats(0, 0.6),
    st.sampled_from([0.001, 0.5, 8.0]),
    st.integers(0, 1000),
)
def test_everything_said_is_heard_exactly_once(
    said: list[str], drop: float, duplicate: float, delay: float, seed: int
) -> None:
    """Over a transport that loses, repeats, delays and reorders."""
    heard: list[str] = []

    async def main(clock: Clock) -> None:
        model = TransportModel(lognormal(delay, 1.0), drop, duplicate)
        there: Endpoint[str, str]
        here: Endpoint[str, str] = Endpoint(
            SimulatedTransport(model, lambda packet: there.receive(packet), seed), lambda _: None
        )
        there = Endpoint(SimulatedTransport(model, here.receive, seed + 1), heard.append)
        for number, text in enumerate(said):
            here.say(str(number), f"{number}:{text}")
            await clock.sleep(0.3)
        await clock.sleep(10_000)
        assert not here._unconfirmed

    run_virtual(main)
    assert sorted(heard) == sorted(f"{number}:{text}" for number, text in enumerate(said))


def test_what_is_said_in_one_tick_travels_in_one_packet() -> None:
    packets: list[Any] = []

    async def main(clock: Clock) -> None:
        end: Endpoint[str, str] = Endpoint(packets.append, lambda _: None)
        for number in range(5):
            end.say(str(number), "x")
        await clock.sleep(0.1)
        end.close()

    run_virtual(main)
    assert [len(packet.messages) for packet in packets] == [5]


def test_a_confirmation_travels_with_a_message_or_waits_for_one() -> None:
    packets: list[tuple[float, Any]] = []

    async def main(clock: Clock) -> None:
        end: Endpoint[str, str] = Endpoint(lambda packet: packets.append((clock.now(), packet)), lambda _: None)
        end.receive(Packet({"a": "x"}))
        await clock.sleep(0.1)
        end.receive(Packet({"b": "x"}))
        end.say("c", "y")
        await clock.sleep(0.1)
        end.receive(Packet({"d": "x"}, confirmed=["c"]))
        await clock.sleep(100.0)

    run_virtual(main)
    assert packets == [
        (pytest.approx(0.1), Packet({"c": "y"}, confirmed=["a", "b"])),
        (pytest.approx(0.2 + CONFIRM_SECONDS), Packet(confirmed=["d"])),
    ]


def test_without_losses_nothing_is_said_twice_however_long_one_end_is_silent() -> None:
    """Something is always under way, so that never everything is confirmed."""
    packets: list[Any] = []

    async def main(clock: Clock) -> None:
        def later(receive: Callable[[Any], None], packet: Any) -> None:
            asyncio.get_running_loop().call_later(0.2, receive, packet)

        def transport(packet: Any) -> None:
            packets.append(packet)
            later(there.receive, packet)

        here: Endpoint[str, str] = Endpoint(transport, lambda _: None)
        there: Endpoint[str, str] = Endpoint(lambda packet: later(here.receive, packet), lambda _: None)
        for number in range(200):
            here.say(str(number), "x")
            await clock.sleep(0.13)

    run_virtual(main)
    assert sum(len(packet.messages) for packet in packets) == 200


def test_a_closed_end_does_not_go_on_saying_what_was_never_confirmed() -> None:
    """The host dies in the tick in which it gets a lease: nothing will ever confirm that."""
    packets: list[Any] = []

    async def main(clock: Clock) -> None:
        end: Endpoint[str, str] = Endpoint(packets.append, lambda _: None)
        end.receive(Packet({"9.0.0": "a report"}))
        end.say("0.0.0", "a lease")
        end.close()
        end.say("0.1.0", "a lease")
        end.receive(Packet({"9.1.0": "a report"}))
        await clock.sleep(100.0)

    run_virtual(main)
    assert not packets


# ------------------------------------------------------------------------------------------------------ barrier


def test_nobody_passes_the_barrier_before_everybody_is_there() -> None:
    passed: list[tuple[float, str, int]] = []

    async def member(clock: Clock, barrier: TurnBarrier, name: str, pace: float, turns: int) -> None:
        barrier.join()
        for turn in range(turns):
            await clock.sleep(pace)
            await barrier.arrive()
            passed.append((clock.now(), name, turn))
        barrier.leave()

    async def main(clock: Clock) -> None:
        barrier = TurnBarrier()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(member(clock, barrier, "slow", 5.0, 2))
            tasks.create_task(member(clock, barrier, "fast", 1.0, 4))

    run_virtual(main)
    times = {(name, turn): time for time, name, turn in passed}
    assert times["fast", 0] == times["slow", 0] == 5.0
    assert times["fast", 1] == times["slow", 1] == 10.0
    assert times["fast", 3] == 12.0, "once the slow one has left, the others do not wait for it"


# -------------------------------------------------------------------------------------------------------- proxy


class Recording(SimulatedEngine):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, constant(1.0), lambda rng: 2)
        self.seen: list[str] = []

    async def generate(self, request: Request) -> Completion:
        self.seen.append(request.trajectory)
        return await super().generate(request)


def test_a_trajectory_stays_with_its_worker_and_new_ones_go_where_there_is_room() -> None:
    async def main(clock: Clock) -> None:
        engines = [Recording(clock), Recording(clock)]
        proxy = proxy_of(engines)

        def ask(trajectory: str, turn: int) -> Any:
            return proxy.generate(request_of(f"{trajectory}#{turn}", trajectory, [1], turn, Sampling()))

        await asyncio.gather(ask("a", 0), ask("b", 0))
        await asyncio.gather(ask("b", 1), ask("a", 1))
        assert sorted(engines[0].seen + engines[1].seen) == ["a", "a", "b", "b"]
        assert len(set(engines[0].seen)) == len(set(engines[1].seen)) == 1

    run_virtual(main)


# ------------------------------------------------------------------------------------------------------ manager


class Scripted:
    """An environment that does what it is told."""

    def __init__(self, clock: Clock, **behaviour: Any) -> None:
        self.clock = clock
        self.behaviour = behaviour
        self.closed = False

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        await self.clock.sleep(self.behaviour.get("reset_seconds", 0))
        return "begin"

    async def step(self, action: str) -> StepResult:
        if "raises" in self.behaviour:
            raise EnvironmentFailed(self.behaviour["raises"])
        await self.clock.sleep(self.behaviour.get("step_seconds", 0))
        self.behaviour["turns"] -= 1
        return StepResult("more", reward=0.5, done=self.behaviour["turns"] == 0)

    async def close(self) -> None:
        self.closed = True


class FailingScorer:
    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        return ()

    async def score(self, trajectory: Trajectory) -> None:
        raise RewardFailed("no score today")


def play(
    scorer: Any = None,
    max_context: int = 200,
    max_turns: int = 10,
    turn_limits: Mapping[str, int] | None = None,
    **behaviour: Any,
) -> tuple[Report, Scripted]:
    async def main(clock: Clock) -> tuple[Report, Scripted]:
        environment = Scripted(clock, **behaviour)
        engine: Engine = SimulatedEngine(clock, constant(0.1), lambda rng: 3)
        stage = Stage(
            clock=clock,
            proxy=proxy_of([engine]),
            environment=lambda task: environment,
            dialogue=ByteDialogue(),
            scorer=scorer or StepRewards(),
            rollout=RolloutConfig(
                deadlines=Deadlines(env_reset=5.0, env_step=5.0), max_turns=max_turns, max_context=max_context
            ),
            turn_limits=turn_limits or {},
        )
        lease = Lease("0.0.0", 0, 0, 0, TASK, 1, Sampling(), 0)
        return await EnvManager(stage, lease).play(), environment

    return run_virtual(main)


def test_an_episode_that_ends_is_finished_and_scored() -> None:
    report, environment = play(turns=3)
    assert report.trajectory.outcome is Outcome.FINISHED
    assert report.trajectory.reward == 1.5
    assert len(report.trajectory.turns) == 3
    assert environment.closed


def test_turn_and_context_limits_truncate() -> None:
    report, _ = play(turns=100, max_turns=4)
    assert (report.trajectory.outcome, len(report.trajectory.turns)) == (Outcome.TRUNCATED, 4)
    report, _ = play(turns=100, max_context=40)
    assert report.trajectory.outcome is Outcome.TRUNCATED
    assert report.trajectory.length <= 40


@pytest.mark.parametrize(("limits", "turns"), [({TASK.environment: 2}, 2), ({"other": 2}, 4)])
def test_a_task_may_have_a_turn_limit_of_its_own(limits: dict[str, int], turns: int) -> None:
    report, _ = play(turns=100, max_turns=4, turn_limits=limits)
    assert (report.trajectory.outcome, len(report.trajectory.turns)) == (Outcome.TRUNCATED, turns)


def test_infrastructure_failures_have_an_outcome_a_cause_and_no_reward() -> None:
    for behaviour, outcome, cause in (
        ({"raises": "disk gone", "turns": 1}, Outcome.ENV_FAILED, "disk gone"),
        ({"step_seconds": 9.0, "turns": 1}, Outcome.TIMED_OUT, "environment step 1"),
        ({"reset_seconds": 9.0, "turns": 1}, Outcome.TIMED_OUT, "environment reset"),
    ):
        report, environment = play(**behaviour)
        assert report.trajectory.outcome is outcome
        assert cause in report.trajectory.cause
        assert report.trajectory.rewards == {}
        assert environment.closed


def test_a_reward_that_fails_is_reported_as_such() -> None:
    report, _ = play(scorer=FailingScorer(), turns=1)
    assert report.reward_failed
    assert report.trajectory.outcome is Outcome.FINISHED
    assert "no score today" in report.trajectory.cause


def test_a_first_observation_that_does_not_fit_says_what_to_change() -> None:
    report, _ = play(turns=1, max_context=4)
    assert report.trajectory.outcome is Outcome.ENV_FAILED
    assert "rollout.max_context" in report.trajectory.cause
