"""A host and what it plays: cancelling, late answers, groups that stay together, the barrier. On the virtual clock."""

from __future__ import annotations

import asyncio
import gc
import weakref
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
from rollweave.clock import WIND_DOWN_SECONDS, Clock, run_virtual
from rollweave.config.control import Deadlines, RolloutConfig
from rollweave.engines.protocol import Completion, Request, Sampling
from rollweave.environments.protocol import Observation, StepResult
from rollweave.rewards.dispatch import Scored
from rollweave.rewards.scorer import THREADS_LEFT
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.link import Cancel, Endpoint, HostLink, Lease, Packet, Report, Score, ToDriver, ToHost
from rollweave.rollout.manager import EnvManager, Stage, TurnBarrier
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Trajectory

TASK = Task("t/0", "t", 7)
TOKEN_SECONDS = 0.1
DEADLINES = Deadlines(env_reset=50.0, env_step=50.0, generate=60.0, reward=50.0, get_batch=500.0)

ROLLOUT = RolloutConfig(max_turns=10, max_context=1_000_000, deadlines=DEADLINES)


def lease(id: str = "0.0.0", group: int = 0) -> Lease:
    return Lease(id, group, 0, 0, TASK, 1, Sampling(max_tokens=100_000), 0)


class Steps:
    """An environment whose calls take this long; `inf`: for ever."""

    def __init__(self, clock: Clock, seconds: float, turns: int, interruptible: bool = True) -> None:
        self._clock = clock
        self._seconds = seconds
        self._left = turns
        self.interruptible = interruptible
        self.finished_calls = 0

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        await self._take()
        return "begin"

    async def step(self, action: str) -> StepResult:
        await self._take()
        self._left -= 1
        return StepResult("more", reward=0.5, done=self._left == 0)

    async def close(self) -> None:
        pass

    async def _take(self) -> None:
        if self._seconds == float("inf"):
            await asyncio.get_running_loop().create_future()
        await self._clock.sleep(self._seconds)
        self.finished_calls += 1


class SlowReward:
    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.finished = 0

    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        return ("slow",)

    async def score(self, trajectory: Trajectory) -> None:
        await self._clock.sleep(self._seconds)
        self.finished += 1
        trajectory.rewards = {"environment": 1.0}


class DeafEngine(SimulatedEngine):
    """Never answers, not even an abort."""

    async def generate(self, request: Request) -> Completion:
        return await asyncio.get_running_loop().create_future()


def engine(clock: Clock, tokens: int = 10) -> SimulatedEngine:
    return SimulatedEngine(clock, constant(TOKEN_SECONDS), lambda rng: tokens)


def stage(clock: Clock, environment: Callable[[Task], Any], **parts: Any) -> Stage:
    defaults = {"proxy": proxy_of([engine(clock)]), "scorer": StepRewards(), "rollout": ROLLOUT}
    return Stage(clock=clock, environment=environment, dialogue=ByteDialogue(), **(defaults | parts))


class Driver:
    """The other end of a host's link."""

    def __init__(self, played_on: Stage) -> None:
        self.reports: list[Report] = []
        self.scored: list[Scored] = []
        self.host = EnvHost(played_on, lambda packet: self.link.receive(packet))
        self.link: HostLink = Endpoint(self.host.link.receive, self._hear)

    def _hear(self, message: ToDriver) -> None:
        if isinstance(message, Scored):
            self.scored.append(message)
        elif isinstance(message, Report):
            self.reports.append(message)

    async def __aenter__(self) -> Driver:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._running = self._tasks.create_task(self.host.run())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._running.cancel()
        await self._tasks.__aexit__(None, None, None)

    def say(self, message: ToHost) -> None:
        match message:
            case Lease(id=id):
                self.link.say(id, message)
            case Cancel(attempt=id):
                self.link.say(f"cancel.{id}", message)
            case Score(call=id):
                self.link.say(f"score.{id}", message)


def cancelled_at(
    seconds: float, environment: dict[str, Any] | None = None, until: float = 1000.0, **parts: Any
) -> tuple[Report, float, Steps]:
    """Plays one episode, cancelled after that time; its report, when it came, and the environment."""

    async def main(clock: Clock) -> tuple[Report, float, Steps]:
        played = Steps(clock, **({"seconds": 1.0, "turns": 3} | (environment or {})))
        ready = {name: part(clock) for name, part in parts.items()}
        async with Driver(stage(clock, lambda task: played, **ready)) as driver:
            driver.say(lease())
            await clock.sleep(seconds)
            driver.say(Cancel("0.0.0"))
            while not driver.reports:
                await clock.sleep(0.01)
                assert clock.now() < until, "it is never reported"
            came = clock.now()
            await clock.sleep(until)
            assert len(driver.reports) == 1
            return driver.reports[0], came, played

    return run_virtual(main)


# ------------------------------------------------------------------------------------------------------- cancel


def test_a_cancelled_answer_is_counted_as_far_as_it_got() -> None:
    # reset 1 s, then ten tokens of 0.1 s: at 1.55 s five are there
    report, came, _ = cancelled_at(1.55)
    assert report.trajectory.outcome is Outcome.ABORTED
    assert report.trajectory.sampled_tokens == 5
    assert report.trajectory.turns[-1].finish == "aborted"
    assert came == pytest.approx(1.56)


def test_an_environment_on_the_same_loop_is_interrupted_at_once() -> None:
    report, came, environment = cancelled_at(2.5)  # within the first step
    assert (report.trajectory.outcome, report.trajectory.sampled_tokens) == (Outcome.ABORTED, 10)
    assert (came, environment.finished_calls) == (pytest.approx(2.51), 1)
    assert report.trajectory.rewards == {}
    assert "cancelled" in report.trajectory.cause


def test_an_environment_elsewhere_may_finish_its_call() -> None:
    """Interrupting it would kill its process, with the other environments in it."""
    report, came, environment = cancelled_at(2.5, {"interruptible": False})
    assert report.trajectory.outcome is Outcome.ABORTED
    assert (came, environment.finished_calls) == (pytest.approx(3.0, abs=0.02), 2)


def test_a_hung_environment_elsewhere_is_given_up_at_its_deadline_and_still_reported_as_cancelled() -> None:
    report, came, _ = cancelled_at(1.0, {"interruptible": False, "seconds": float("inf")})
    assert report.trajectory.outcome is Outcome.ABORTED
    assert came == pytest.approx(DEADLINES.env_reset, abs=0.02)


def test_an_episode_that_ended_before_it_was_cancelled_is_reported_as_it_ended() -> None:
    # three turns of 1 + 1 s after a reset of 1 s: at 8 s it has ended
    report, _, _ = cancelled_at(8.0, scorer=lambda clock: SlowReward(clock, 5.0))
    assert report.trajectory.outcome is Outcome.FINISHED
    assert report.awaited == ("slow",)


# -------------------------------------------------------------------------------------------------------- rewards


class LeavesThread:
    """A plain function that does not return, as `call_in_thread` sees it."""

    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        return ("plain",)

    async def score(self, trajectory: Trajectory) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            trajectory.info[THREADS_LEFT] = 1


ENDS = 7.0
"""When the episode of `rewarded` ends: a reset of 1 s, then three turns of 1 + 1 s."""


def rewarded(*script: tuple[float, ToHost], reward_seconds: float = 5.0, **parts: Any) -> tuple[Driver, SlowReward]:
    """Plays one episode and says the rest of the script at its times; what the driver has heard in the end."""

    async def main(clock: Clock) -> tuple[Driver, SlowReward]:
        reward = SlowReward(clock, reward_seconds)
        played_on = stage(clock, lambda task: Steps(clock, 1.0, 3), scorer=reward, **parts)
        async with Driver(played_on) as driver:
            driver.say(lease())
            for at, message in script:
                await clock.sleep(at - clock.now())
                driver.say(message)
            await clock.sleep(1000.0)
            assert not driver.host._scoring and not driver.host._cancelled
            return driver, reward

    return run_virtual(main)


def test_an_episode_is_reported_before_its_reward_and_scored_without_being_asked() -> None:
    driver, _ = rewarded()
    (report,), (scored,) = driver.reports, driver.scored
    assert (report.trajectory.outcome, report.awaited) == (Outcome.FINISHED, ("slow",))
    assert (scored.attempt, scored.rewards, scored.failure) == ("0.0.0", {"environment": 1.0}, None)


def test_the_barrier_mode_reports_with_the_reward() -> None:
    async def main(clock: Clock) -> Report:
        reward = SlowReward(clock, 5.0)
        played_on = stage(clock, lambda task: Steps(clock, 1.0, 3), scorer=reward, barrier=TurnBarrier())
        report = await EnvManager(played_on, lease()).play()
        assert clock.now() == pytest.approx(ENDS + 5)
        return report

    report = run_virtual(main)
    assert (report.awaited, report.trajectory.rewards) == ((), {"environment": 1.0})


def test_a_reward_that_misses_its_deadline_has_failed_by_name() -> None:
    driver, reward = rewarded(reward_seconds=2 * DEADLINES.reward)
    (scored,) = driver.scored
    assert scored.failure is not None and "reward slow since 50.0 s (deadline 50 s" in scored.failure
    assert reward.finished == 0


def test_a_reward_that_is_not_wanted_any_more_is_not_computed() -> None:
    driver, reward = rewarded((ENDS + 1, Cancel("0.0.0")))
    assert (len(driver.reports), driver.scored, reward.finished) == (1, [], 0)


def test_a_thread_that_a_cancelled_reward_leaves_behind_is_counted() -> None:
    """Not only one that missed its deadline: such threads hold memory and cores until their functions return."""

    async def main(clock: Clock) -> list[Scored]:
        played_on = stage(clock, lambda task: Steps(clock, 1.0, 3), scorer=LeavesThread())
        async with Driver(played_on) as driver:
            driver.say(lease())
            await clock.sleep(ENDS + 1)
            driver.say(Cancel("0.0.0"))
            await clock.sleep(100.0)
            return driver.scored

    assert [(scored.attempt, scored.threads_left) for scored in run_virtual(main)] == [("0.0.0", 1)]


def test_a_host_scores_what_another_one_played() -> None:
    other = Trajectory("9.0.0", 9, 0, TASK, outcome=Outcome.FINISHED)
    driver, _ = rewarded((1.0, Score(other, "9.0.0/0")), (ENDS + 1, Cancel("0.0.0")))
    assert [(scored.attempt, scored.rewards) for scored in driver.scored] == [("9.0.0", {"environment": 1.0})]


def test_a_cancel_that_overtakes_the_score_of_a_foreign_trajectory_is_not_forgotten() -> None:
    other = Trajectory("9.0.0", 9, 0, TASK, outcome=Outcome.FINISHED)
    script = [(1.0, Cancel("9.0.0/0")), (2.0, Score(other, "9.0.0/0")), (ENDS + 1, Cancel("0.0.0"))]
    driver, reward = rewarded(*script)
    assert (driver.scored, reward.finished) == ([], 0)


def test_an_engine_that_ignores_the_abort_is_not_waited_for_long() -> None:
    deaf = lambda clock: proxy_of([DeafEngine(clock, constant(1.0), lambda rng: 1)])  # noqa: E731
    report, came, _ = cancelled_at(3.0, proxy=deaf)
    assert report.trajectory.outcome is Outcome.ABORTED
    assert came == pytest.approx(3.0 + WIND_DOWN_SECONDS, abs=0.02)


def test_a_cancel_that_overtakes_its_lease_is_not_forgotten() -> None:
    async def main(clock: Clock) -> None:
        played = Steps(clock, 1.0, 3)
        async with Driver(stage(clock, lambda task: played)) as driver:
            driver.say(Cancel("0.0.0"))
            await clock.sleep(100)
            assert driver.reports == []
            driver.say(lease())
            await clock.sleep(0.01)
            (report,) = driver.reports
            assert report.trajectory.outcome is Outcome.ABORTED
            assert (report.trajectory.turns, played.finished_calls) == ([], 0)
            driver.say(lease("0.0.1"))
            await clock.sleep(100)
            assert driver.reports[1].trajectory.outcome is Outcome.FINISHED
            driver.say(Cancel("0.0.1"))  # after the report
            await clock.sleep(100)
            assert len(driver.reports) == 2
            assert driver.host._cancelled == set()

    run_virtual(main)


def test_a_lease_cancelled_before_the_host_runs_is_not_played() -> None:
    async def main(clock: Clock) -> None:
        played = Steps(clock, 1.0, 3)
        driver = Driver(stage(clock, lambda task: played))
        driver.say(lease())
        driver.say(Cancel("0.0.0"))
        async with driver:
            await clock.sleep(0.01)
            assert [report.trajectory.outcome for report in driver.reports] == [Outcome.ABORTED]
            assert played.finished_calls == 0

    run_virtual(main)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 12), st.floats(0, 12) | st.none(), st.booleans()), min_size=1, max_size=8),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.sampled_from([0.001, 0.5, 3.0]),
    st.integers(0, 1000),
)
def test_every_lease_is_reported_once_whatever_is_lost_repeated_and_overtaken(
    leases: list[tuple[float, float | None, bool]], drop: float, duplicate: float, delay: float, seed: int
) -> None:
    """Each lease: when it is submitted, how much later it is cancelled (if it is), whether its environment hangs."""
    reports: dict[str, list[Report]] = {}

    async def main(clock: Clock) -> int:
        served = engine(clock)
        hangs = {str(number): hung for number, (_, _, hung) in enumerate(leases)}
        environment = lambda task: Steps(clock, float("inf") if hangs[task.id] else 0.7, 3)  # noqa: E731
        model = TransportModel(lognormal(delay, 1.0), drop, duplicate)
        dispatcher, host = Dispatcher(), None
        link = dispatcher.attach(SimulatedTransport(model, lambda packet: host.link.receive(packet), seed), 4)
        host = EnvHost(
            stage(clock, environment, proxy=proxy_of([served])), SimulatedTransport(model, link.receive, seed + 1)
        )

        async def live(number: int, begins: float, cancelled: float | None) -> None:
            await clock.sleep(begins)
            one = Lease(str(number), number, 0, 0, Task(str(number), "t", 1), number, Sampling(max_tokens=50), 0)
            dispatcher.submit([one], lambda lease, report: reports.setdefault(lease.id, []).append(report))
            if cancelled is not None:
                await clock.sleep(cancelled)
                dispatcher.cancel(one.id)

        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(host.run())
            async with asyncio.TaskGroup() as driver:
                for number, (begins, cancelled, _) in enumerate(leases):
                    driver.create_task(live(number, begins, cancelled))
            await clock.sleep(100_000)
            running.cancel()
        assert not host._playing
        return (await served.stats()).sampled_tokens

    sampled = run_virtual(main)
    assert {id: len(heard) for id, heard in reports.items()} == {str(number): 1 for number in range(len(leases))}
    for number, (_, cancelled, hung) in enumerate(leases):
        outcome = reports[str(number)][0].trajectory.outcome
        if cancelled is None:
            assert outcome is (Outcome.TIMED_OUT if hung else Outcome.FINISHED)
        else:
            assert outcome in (Outcome.ABORTED, Outcome.FINISHED) or (hung and outcome is Outcome.TIMED_OUT)
    assert sampled == sum(heard[0].trajectory.sampled_tokens for heard in reports.values()), "a token is not booked"


def test_an_episode_that_is_over_is_not_kept_alive_by_itself() -> None:
    """The collector comes by rarely: what is part of a cycle would stay for thousands of episodes."""

    async def main(clock: Clock) -> None:
        manager = EnvManager(stage(clock, lambda task: Steps(clock, 1.0, 3)), lease())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(manager.play())
        alive = weakref.ref(manager)
        del manager
        await clock.sleep(1)
        assert alive() is None

    gc.disable()
    try:
        run_virtual(main)
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------------------- late answers


def test_an_answer_that_misses_its_deadline_is_counted() -> None:
    async def main(clock: Clock) -> Report:
        played_on = stage(
            clock,
            lambda task: Steps(clock, 1.0, 3),
            proxy=proxy_of([engine(clock, tokens=5000)]),
            rollout=ROLLOUT.model_copy(update={"deadlines": Deadlines(generate=2.05)}),
        )
        async with Driver(played_on) as driver:
            driver.say(lease())
            await clock.sleep(100)
            return driver.reports[0]

    trajectory = run_virtual(main).trajectory
    assert (trajectory.outcome, trajectory.sampled_tokens) == (Outcome.TIMED_OUT, 20)
    assert "generation of turn 1" in trajectory.cause and "deadline 2.05 s" in trajectory.cause


# --------------------------------------------------------------------------------------------- prompt replication


@pytest.mark.parametrize(("replication", "workers_of_a_group"), [(False, 1), (True, 4)])
def test_without_prompt_replication_a_group_stays_on_one_worker(replication: bool, workers_of_a_group: int) -> None:
    async def main(clock: Clock) -> None:
        where: dict[int, set[int]] = {}

        class Noting(SimulatedEngine):
            async def generate(self, request: Request) -> Completion:
                where.setdefault(int(request.trajectory.split(".")[0]), set()).add(engines.index(self))
                return await super().generate(request)

        engines = [Noting(clock, constant(TOKEN_SECONDS), lambda rng: 3) for _ in range(4)]
        played_on = stage(
            clock,
            lambda task: Steps(clock, 1.0, 3),
            proxy=proxy_of(engines),
            rollout=ROLLOUT.model_copy(update={"prompt_replication": replication}),
        )
        async with Driver(played_on) as driver:
            for group in range(4):
                for member in range(4):
                    driver.say(lease(f"{group}.{member}.0", group))
            await clock.sleep(100)
        assert [len(workers) for workers in where.values()] == [workers_of_a_group] * 4
        assert set.union(*where.values()) == {0, 1, 2, 3}, "all workers work"

    run_virtual(main)


# ------------------------------------------------------------------------------------------------------ barrier


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 20) | st.none()), min_size=1, max_size=6)
)
def test_the_barrier_holds_whoever_leaves_is_cancelled_or_fails(members: list[tuple[int, int, int | None]]) -> None:
    """Each member: its pace, its turns, and when it is cancelled, in the middle of a turn or at the barrier."""
    taken: dict[int, int] = dict.fromkeys(range(len(members)), 0)
    present: set[int] = set(taken)

    async def member(clock: Clock, barrier: TurnBarrier, name: int, pace: int, turns: int) -> None:
        try:
            for turn in range(turns):
                await clock.sleep(pace)
                await barrier.arrive()
                taken[name] = turn + 1
                assert all(taken[other] >= turn for other in present), "a member is two turns behind"
        finally:
            present.discard(name)
            barrier.leave()

    async def main(clock: Clock) -> None:
        barrier = TurnBarrier()
        async with asyncio.TaskGroup() as tasks:
            for name, (pace, turns, cancelled) in enumerate(members):
                barrier.join()
                task = tasks.create_task(member(clock, barrier, name, pace, turns))
                if cancelled is not None:
                    clock.loop.call_later(cancelled + 0.5 * (name % 2), task.cancel)

    run_virtual(main)  # a barrier that loses count deadlocks, and the clock says so
    for name, (_, turns, cancelled) in enumerate(members):
        assert cancelled is not None or taken[name] == turns


def test_a_cancelled_member_of_a_batch_is_not_waited_for() -> None:
    async def main(clock: Clock) -> None:
        paces = {"0": 1.0, "1": 40.0}
        played_on = stage(clock, lambda task: Steps(clock, paces[task.id], 2), barrier=TurnBarrier())
        async with Driver(played_on) as driver:
            for id in paces:
                driver.say(Lease(id, 0, 0, 0, Task(id, "t", 1), 1, Sampling(), 0))
            await clock.sleep(10)
            assert [wait.what for wait in clock.waits()] == ["environment reset", "the other environments"]
            driver.say(Cancel("1"))
            await clock.sleep(10)
            assert {report.attempt: report.trajectory.outcome for report in driver.reports} == {
                "0": Outcome.FINISHED,
                "1": Outcome.ABORTED,
            }

    run_virtual(main)


def test_a_reward_that_overtakes_its_report_is_heard_after_it() -> None:
    """A packet that was lost is said again later: what came after it arrives first."""
    heard: list[str] = []

    async def main(clock: Clock) -> None:
        dispatcher = Dispatcher()
        dispatcher.on_scored = lambda scored: heard.append(f"scored {scored.attempt}")
        link = dispatcher.attach(lambda packet: None, 1)
        played = lease()
        dispatcher.submit([played], lambda lease, report: heard.append(f"reported {report.attempt}"))
        link.receive(Packet({"scored": Scored(played.id, {"r": 1.0})}))
        assert heard == []
        trajectory = Trajectory(played.id, 0, 0, TASK, outcome=Outcome.FINISHED)
        link.receive(Packet({"report": Report(played.id, trajectory, awaited=("r",))}))
        link.close()

    run_virtual(main)
    assert heard == ["reported 0.0.0", "scored 0.0.0"]
