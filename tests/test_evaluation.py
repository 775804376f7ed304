"""Waiting for an evaluation: it may take long, but not stand still."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollweave.clock import Clock, DeadlineExceeded, run_virtual
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

    def submit(self, leases: list[Lease], heard: Callable[[Lease, Report], None], first: bool) -> None:
        [lease] = leases
        self.waiting += 1
        ended = Trajectory(lease.id, lease.group, lease.member, lease.task, outcome=Outcome.FINISHED)
        if lease.member != self.hangs:
            self.clock.later(lease.id, self.waiting * self.seconds, lambda: heard(lease, Report(lease.id, ended)))


def evaluate(seconds: float, hangs: int | None = None) -> Evaluation | None:
    async def main(clock: Clock) -> Evaluation | None:
        tasks = [SeedSource("t", 0).task(number) for number in range(5)]
        dispatcher = OneAfterTheOther(clock, seconds, hangs)
        recorder = MemoryRecorder(clock.now)
        evaluator = Evaluator(tasks, Sampling(), dispatcher, None, clock, recorder, 3, TIMEOUT)  # type: ignore[arg-type]
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
