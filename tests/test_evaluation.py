"""Waiting for an evaluation: it may take long, but not stand still."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollweave.clock import Clock, DeadlineExceeded, run_virtual
from rollweave.config.control import Deadlines, EvaluationConfig, RolloutConfig
from rollweave.engines.protocol import Sampling
from rollweave.observability.events import MemoryRecorder
from rollweave.rollout.evaluation import Evaluation, Evaluator
from rollweave.rollout.link import Lease, Report
from rollweave.tasks import SeedSource
from rollweave.trajectory import Outcome, Trajectory

TIMEOUT = 10.0


class OneAfterTheOther:
    """In the place of the dispatcher: an episode takes `seconds`; the one numbered `hangs` never ends."""

    def __init__(self, clock: Clock, seconds: float, hangs: int | None = None) -> None:
        self.clock, self.seconds, self.hangs, self.waiting = clock, seconds, hangs, 0
        self.leased: list[str] = []

    def submit(self, leases: list[Lease], heard: Callable[[Lease, Report], None], first: bool) -> None:
        [lease] = leases
        self.waiting += 1
        self.leased.append(lease.id)
        ended = Trajectory(lease.id, lease.group, lease.member, lease.task, outcome=Outcome.FINISHED)
        if lease.member != self.hangs:
            self.clock.later(lease.id, self.waiting * self.seconds, lambda: heard(lease, Report(lease.id, ended)))


def evaluate(seconds: float, hangs: int | None = None) -> Evaluation | None:
    async def main(clock: Clock) -> Evaluation | None:
        evaluator = evaluator_of(clock, OneAfterTheOther(clock, seconds, hangs), tasks=5)
        evaluator.start(7)
        return await evaluator.result()

    return run_virtual(main)


def test_an_evaluation_that_gets_on_may_take_longer_than_its_deadline() -> None:
    evaluation = evaluate(seconds=0.9 * TIMEOUT)  # 45 s in all
    assert evaluation is not None
    assert len(evaluation.trajectories) == 5


def test_one_that_stands_still_says_how_far_it_got() -> None:
    with pytest.raises(DeadlineExceeded, match="evaluation of version 7, 4 of 5 episodes done"):
        evaluate(seconds=1.0, hangs=0)


def evaluator_of(clock: Clock, dispatcher: object, tasks: int, max_retries: int = 3) -> Evaluator:
    drawn = [SeedSource("t", 0).task(number) for number in range(tasks)]
    recorder = MemoryRecorder(clock.now)
    rollout = RolloutConfig(max_retries=max_retries, deadlines=Deadlines(get_batch=TIMEOUT))
    return Evaluator(
        EvaluationConfig(),
        rollout,
        drawn,
        Sampling(),
        dispatcher,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        clock,
        recorder,
    )


def test_a_version_is_evaluated_once() -> None:
    """The last step may have taken the result of the last version: its ids, once used, are no news to a host."""

    async def main(clock: Clock) -> None:
        dispatcher = OneAfterTheOther(clock, 1.0)
        evaluator = evaluator_of(clock, dispatcher, tasks=2)
        evaluator.start(7)
        assert await evaluator.result() is not None
        evaluator.start(7)
        assert await evaluator.result() is None
        assert dispatcher.leased == ["eval.7.1.0", "eval.7.0.0"]

    run_virtual(main)


class Unlucky:
    """In the place of the dispatcher: the host dies twice, then the environment fails once, then all goes well."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.asked = clock, 0

    def submit(self, leases: list[Lease], heard: Callable[[Lease, Report], None], first: bool) -> None:
        [lease] = leases
        self.asked += 1
        outcome = Outcome.FINISHED if self.asked > 3 else Outcome.ENV_FAILED
        ended = Trajectory(lease.id, lease.group, lease.member, lease.task, outcome=outcome)
        report = Report(lease.id, ended, host_died=self.asked <= 2)
        self.clock.later(lease.id, 1.0, lambda: heard(lease, report))


def test_a_host_that_dies_is_no_failure_of_the_episode() -> None:
    async def main(clock: Clock) -> Evaluation | None:
        evaluator = evaluator_of(clock, Unlucky(clock), tasks=1, max_retries=1)
        evaluator.start(7)
        return await evaluator.result()

    evaluation = run_virtual(main)
    assert evaluation is not None and [t.id for t in evaluation.trajectories] == ["eval.7.0.3"]
