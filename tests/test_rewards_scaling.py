"""The rule that scales reward instances, played with random calls, and the judge that is driven by it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.clock import Clock, run_virtual
from rollweave.rewards.scaling import InstanceScaler, ScalingLimits, Seating
from rollweave.simulation.hardware.judge import Judge
from rollweave.simulation.hardware.machines import make_judge
from rollweave.simulation.simulate import scenario
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory


@st.composite
def limits(draw: st.DrawFn) -> ScalingLimits:
    maximum = draw(st.integers(1, 4))
    minimum = draw(st.sampled_from([0, 0, 1, maximum]))
    return ScalingLimits(
        maximum, draw(st.sampled_from([1, 1, 2, 3])), min(minimum, maximum), draw(st.sampled_from([0.0, 1.0, 5.0]))
    )


@dataclass
class BackEnd:
    """Does what the rule says, and keeps its own books of it."""

    limits: ScalingLimits
    now: float = 0.0
    calls: int = 0
    served: dict[int, set[int]] = field(default_factory=dict)
    """The calls on each instance that lives."""
    idle_since: dict[int, float] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)
    seated: list[int] = field(default_factory=list)
    given_up: set[int] = field(default_factory=set)
    """Calls that left the queue without a seat."""
    busy: float = 0.0
    paid: float = 0.0

    def __post_init__(self) -> None:
        self.rule = InstanceScaler(self.limits, self.now)
        self.served = {number: set() for number in range(self.limits.minimum)}
        self.idle_since = dict.fromkeys(self.served, self.now)

    def pass_time(self, seconds: float) -> None:
        """The timers that come due meanwhile are served at their time."""
        end = self.now + seconds
        while (due := self.rule.next_stop()) is not None and due <= end:
            self.advance(max(due, self.now))
            stopped = self.rule.stop_idle(self.now)
            assert stopped, "the rule asked for a timer, and had nothing to do when it came"
            for number in stopped:
                assert not self.served.pop(number), "a busy instance was stopped"
                assert self.now == self.idle_since.pop(number) + self.limits.idle_seconds
        self.advance(end)
        assert self.rule.stop_idle(self.now) == [], "too early, or not asked for by next_stop"

    def advance(self, to: float) -> None:
        self.paid += (to - self.now) * len(self.served)
        self.busy += (to - self.now) * sum(1 for calls in self.served.values() if calls)
        self.now = to

    def ask(self) -> None:
        call, self.calls = self.calls, self.calls + 1
        seating = self.rule.ask(call, self.now)
        if seating is None:
            self.queue.append(call)
        else:
            self.sit(seating, call)

    def leave(self, call: int) -> None:
        seating = self.rule.leave(call, self.now)
        if call in self.queue:
            self.queue.remove(call)
            self.given_up.add(call)
            assert seating is None, "a call that only queued has no seat to give"
            return
        number = next(number for number, calls in self.served.items() if call in calls)
        self.served[number].remove(call)
        if not self.served[number]:
            self.idle_since[number] = self.now
        if seating is not None:
            assert not seating.starts_instance
            self.sit(seating, self.queue.pop(0))

    def sit(self, seating: Seating, call: int) -> None:
        assert seating.call == call, "out of order"
        if seating.starts_instance:
            assert all(len(calls) == self.limits.seats for calls in self.served.values()), "a seat was free"
            assert seating.instance not in self.served
            self.served[seating.instance] = set()
        self.served[seating.instance].add(call)
        self.idle_since.pop(seating.instance, None)
        self.seated.append(call)

    def check(self) -> None:
        limits, loads = self.limits, [len(calls) for calls in self.served.values()]
        assert limits.minimum <= len(loads) <= limits.maximum
        assert all(load <= limits.seats for load in loads)
        assert not self.queue or loads == [limits.seats] * limits.maximum, (
            "a call waits while a seat is or could be free"
        )
        if len(loads) > limits.minimum:
            assert all(since + limits.idle_seconds >= self.now for since in self.idle_since.values())
        assert [self.rule.load(number) for number in self.served] == loads
        assert self.rule.use(self.now) == pytest.approx((self.busy, self.paid))


MOVES = st.one_of(
    st.just(("ask", 0.0)),
    st.tuples(st.just("leave"), st.sampled_from([0.0, 0.3, 0.6, 0.9])),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 1.0, 4.0, 9.0])),
)
"""What happens, and which of the calls leaves (as a share of them) or for how many seconds nothing happens."""


@settings(max_examples=200)
@given(limits(), st.lists(MOVES, max_size=40))
def test_the_rule_keeps_its_promises(limits: ScalingLimits, moves: list[tuple[str, float]]) -> None:
    world = BackEnd(limits)
    for move, number in moves:
        here = sorted([*world.queue, *(call for calls in world.served.values() for call in calls)])
        if move == "ask":
            world.ask()
        elif move == "wait":
            world.pass_time(number)
        elif here:
            world.leave(here[int(number * len(here))])
        world.check()
    while remaining := [call for calls in world.served.values() for call in calls]:
        world.leave(remaining[0])
        world.check()
    assert world.seated == [call for call in range(world.calls) if call not in world.given_up]
    world.pass_time(limits.idle_seconds + 1)
    assert len(world.served) == limits.minimum


@pytest.mark.parametrize(("minimum", "seats"), [(0, [0, 0, 0, 1, 1]), (2, [0, 1, 0, 1, 0])])
def test_functions_are_filled_up_and_devices_share_the_load(minimum: int, seats: list[int]) -> None:
    """A function that is left alone can stop; a device of one's own is paid for in any case."""
    rule = InstanceScaler(ScalingLimits(2, 3, minimum), 0.0)
    seatings = [rule.ask(call, 0.0) for call in range(5)]
    assert [seating.instance for seating in seatings if seating] == seats


def test_the_fuller_function_gets_the_call() -> None:
    rule = InstanceScaler(ScalingLimits(2, 3), 0.0)
    for call in range(5):
        rule.ask(call, 0.0)
    rule.leave(0, 1.0)
    rule.leave(1, 1.0)
    assert rule.ask(5, 1.0) == Seating(5, instance=1, starts_instance=False)


def test_each_instance_stops_after_its_own_idle_time() -> None:
    rule = InstanceScaler(ScalingLimits(2, 1, idle_seconds=5.0), 0.0)
    for call in (0, 1):
        rule.ask(call, 0.0)
    assert rule.next_stop() is None
    rule.leave(1, 1.0)
    rule.leave(0, 2.0)
    for due, instance in ((6.0, 1), (7.0, 0)):
        assert rule.next_stop() == due
        assert rule.stop_idle(due - 0.1) == []
        assert rule.stop_idle(due) == [instance]
    assert rule.next_stop() is None


def test_a_call_that_asks_twice_is_refused() -> None:
    rule = InstanceScaler(ScalingLimits(1, 1), 0.0)
    for call in (0, 1):
        rule.ask(call, 0.0)
        with pytest.raises(ValueError, match=f"call {call} is here already"):
            rule.ask(call, 0.0)


# ----------------------------------------------------------------------------------- the simulated judge obeys it


def judge(clock: Clock, seats: int = 1) -> Judge:
    """One function at most; each call takes 10 s."""
    pools = [
        {"name": "rollout", "device": "H20", "count": 1, "role": "rollout"},
        {"name": "train", "device": "H800", "count": 1, "role": "train"},
        {"name": "reward", "device": "serverless", "count": 1, "role": "reward"},
    ]
    seconds = {"type": "constant", "value": 10.0}
    made = make_judge(
        scenario(
            {
                "model": "qwen3-8b",
                "cluster": {"pools": pools},
                "workload": {"tasks": [{"preset": "rlvr-judge"}]},
                "constants": {"serverless_io": 0.0},
                "judge": {"seconds": seconds, "concurrency": seats, "cold_start": 2.0, "idle_seconds": 5.0},
            }
        ),
        clock,
    )
    assert made is not None
    return made


async def scored(judge: Judge, clock: Clock, number: int) -> float:
    """When this call is answered."""
    await judge.score(Trajectory(f"{number}.0.0", number, 0, Task("t", "e", 0)))
    return clock.now()


def test_functions_start_serve_in_order_and_stop() -> None:
    async def play(clock: Clock) -> tuple[list[float], float, float]:
        made = judge(clock)
        times = await asyncio.gather(*(scored(made, clock, number) for number in range(3)))
        await clock.sleep(100.0)
        again = await scored(made, clock, 3)
        return times, again, made.use().paid

    times, again, paid = run_virtual(play)
    assert times == [12.0, 22.0, 32.0]  # a cold start of 2 s, then 10 s each
    assert again == 32.0 + 100.0 + 12.0  # cold again: it had stopped
    assert paid == (32.0 + 5.0) + 12.0


def test_a_function_answers_no_call_before_it_has_started() -> None:
    async def play(clock: Clock) -> list[float]:
        made = judge(clock, seats=3)
        first = asyncio.ensure_future(scored(made, clock, 0))
        await clock.sleep(0.5)
        second = asyncio.ensure_future(scored(made, clock, 1))
        await clock.sleep(2.0)
        return await asyncio.gather(first, second, scored(made, clock, 2))

    assert run_virtual(play) == [12.0, 12.0, 12.5]


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_seat_is_not_lost_with_a_caller_that_gives_up_when_it_gets_it(hops: int) -> None:
    """The second of three callers gives up at the moment the first one leaves, before or after it got the seat."""

    def cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[float], hops: int) -> None:
        if hops:
            loop.call_soon(cancel, loop, task, hops - 1)
        else:
            task.cancel()

    async def play(clock: Clock) -> float:
        made = judge(clock)
        async with asyncio.TaskGroup() as group:
            first, second, third = (group.create_task(scored(made, clock, number)) for number in range(3))
            await clock.sleep(1.0)
            clock.loop.call_at(12.0, cancel, clock.loop, second, hops)
        assert first.result() == 12.0 and second.cancelled()
        return third.result()

    assert run_virtual(play) == 22.0
