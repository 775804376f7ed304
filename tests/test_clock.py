"""The clocks: order, deadlines, deadlock, refusals."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollweave.clock import (
    WIND_DOWN_SECONDS,
    Clock,
    DeadlineExceeded,
    Deadlock,
    VirtualClockViolation,
    run_virtual,
    run_wall,
)


def test_virtual_time_jumps_to_the_next_event() -> None:
    async def main(clock: Clock) -> list[float]:
        seen = []
        for seconds in (3600.0, 0.5):
            await clock.sleep(seconds)
            seen.append(clock.now())
        return seen

    assert run_virtual(main) == [3600.0, 3600.5]


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.5]), min_size=1, max_size=40))
def test_events_run_by_time_then_by_the_order_they_were_set(delays: list[float]) -> None:
    async def main(clock: Clock) -> list[int]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        for number, delay in enumerate(delays):
            loop.call_at(delay, order.append, number)
        await clock.sleep(10)
        return order

    assert run_virtual(main) == sorted(range(len(delays)), key=lambda n: (delays[n], n))


def test_a_deadlock_names_its_waiters() -> None:
    async def main(clock: Clock) -> None:
        with clock.wait("trainer", "batch 7"):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="trainer waits for batch 7"):
        run_virtual(main)


def test_a_missed_deadline_says_who_waited_for_what() -> None:
    async def main(clock: Clock) -> float:
        message = r"env 3 waits for step 12 since 5\.0 s"
        with pytest.raises(DeadlineExceeded, match=message), clock.wait("env 3", "step 12", timeout=5):
            await clock.sleep(100)
        return clock.now()

    assert run_virtual(main) == 5.0


def test_a_wait_that_ends_in_time_leaves_no_timer_behind() -> None:
    async def main(clock: Clock) -> float:
        with clock.wait("a", "b", timeout=50):
            await clock.sleep(1)
        assert clock.waits() == []
        return clock.now()

    assert run_virtual(main) == 1.0


def test_only_the_wait_that_is_late_expires_and_nested_waits_survive() -> None:
    async def main(clock: Clock) -> str:
        with clock.wait("outer", "all of it", timeout=100):
            try:
                with clock.wait("inner", "a part", timeout=2):
                    await clock.sleep(10)
            except DeadlineExceeded as error:
                await clock.sleep(3)
                return str(error)
        return "nobody was late"

    assert "inner waits for a part" in run_virtual(main)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=30))
def test_each_of_many_deadlines_is_kept_from_one_heap(waits: list[tuple[int, int]]) -> None:
    async def one(clock: Clock, work: float, limit: float) -> tuple[bool, float]:
        try:
            with clock.wait("w", "x", timeout=limit):
                await clock.sleep(work)
        except DeadlineExceeded:
            return True, clock.now()
        return False, clock.now()

    async def main(clock: Clock) -> list[tuple[bool, float]]:
        # + 0.5: no work ends exactly at a deadline
        return await asyncio.gather(*(one(clock, work, limit + 0.5) for work, limit in waits))

    assert run_virtual(main) == [(work > limit, min(work, limit + 0.5)) for work, limit in waits]


def test_a_wait_that_can_be_ended_in_order_is_told_to_and_not_cancelled() -> None:
    async def main(clock: Clock) -> tuple[str, float]:
        answer = clock.loop.create_future()
        with clock.wait("env 3", "an answer", timeout=5, late=lambda: answer.set_result("half of it")) as wait:
            got = await answer
        assert wait.expired and not wait.open
        return got, clock.now()

    assert run_virtual(main) == ("half of it", 5.0)


def test_the_time_to_wind_down_counts_from_the_deadline() -> None:
    async def main(clock: Clock) -> float:
        # The longer deadline of another task must not put this one off.
        with clock.wait("other", "c", timeout=100):
            with pytest.raises(DeadlineExceeded), clock.wait("a", "b", timeout=5, late=lambda: None):
                await clock.loop.create_future()
            return clock.now()

    assert run_virtual(main) == 5.0 + WIND_DOWN_SECONDS


def test_who_waits_is_listed_longest_first_whatever_the_deadlines() -> None:
    async def waiter(clock: Clock, name: str, timeout: float | None) -> None:
        with clock.wait(name, "x", timeout=timeout):
            await clock.sleep(10)

    async def main(clock: Clock) -> list[str]:
        async with asyncio.TaskGroup() as tasks:
            for name, timeout in (("a", 50.0), ("b", None), ("c", 20.0), ("d", 50.0)):
                tasks.create_task(waiter(clock, name, timeout))
                await clock.sleep(1)
            listed = [wait.who for wait in clock.waits()]
        assert clock.waits() == []
        return listed

    assert run_virtual(main) == ["a", "b", "c", "d"]


def test_a_cancellation_from_outside_is_not_taken_for_a_deadline() -> None:
    async def main(clock: Clock) -> None:
        async def waiter() -> None:
            with clock.wait("a", "b", timeout=5):
                await clock.sleep(100)

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(waiter())
            await clock.sleep(1)
            task.cancel()
        assert task.cancelled()

    run_virtual(main)


def test_time_the_loop_was_blocked_counts_against_no_deadline() -> None:
    async def main(clock: Clock) -> float:
        loop = asyncio.get_running_loop()

        async def block() -> None:
            await clock.sleep(1)
            with clock.blocked():
                loop._now += 100  # type: ignore[attr-defined]

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(block())
            with pytest.raises(DeadlineExceeded), clock.wait("a", "b", timeout=5):
                await clock.sleep(1000)
        return clock.now()

    assert run_virtual(main) == 105.0


def test_the_virtual_loop_refuses_the_outside_world() -> None:
    async def sockets(clock: Clock) -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    async def threads(clock: Clock) -> None:
        await asyncio.to_thread(threading.get_ident)

    for main in (sockets, threads):
        with pytest.raises(VirtualClockViolation):
            run_virtual(main)


def test_the_wall_clock_keeps_deadlines_too() -> None:
    async def main(clock: Clock) -> bool:
        with pytest.raises(DeadlineExceeded), clock.wait("a", "b", timeout=0.01):
            await asyncio.get_running_loop().create_future()
        return True

    assert run_wall(main)
