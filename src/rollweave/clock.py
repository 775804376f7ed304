"""Time: a wall clock and a virtual clock behind the same asyncio code.

The control plane never asks the machine what time it is. It is given a `Clock`, which reads the running
loop's time, so the same code runs on the wall clock (`run_wall`) and on the virtual clock (`run_virtual`),
where time jumps to the next event and an hour passes in milliseconds.

The virtual loop orders events by (time, sequence): two runs of the same program interleave identically. When
nothing is ready and no timer is pending it raises `Deadlock` with the list of who waits for what, and it
refuses sockets, threads and subprocesses, whose timing it could not fix.

Every wait has a name, an owner and, usually, a deadline:

    with clock.wait("trainer", "batch 7", timeout=60):
        batch = await something

All deadlines of a clock share one heap and one loop timer.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from types import TracebackType
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from rollweave.errors import RollweaveError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DeadlineExceeded(RollweaveError, TimeoutError):
    """A wait outlived its deadline. Says who waited for what, and how long."""


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is pending: everybody waits for somebody."""


class VirtualClockViolation(RuntimeError):
    """Code on the virtual clock tried to touch the outside world."""


class Clock:
    """Time and named waits for everything that runs on one loop."""

    def __init__(self) -> None:
        self._order = itertools.count()
        self._waits: dict[int, Wait] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._blocked = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def wait(self, who: str, what: str, timeout: float | None = None) -> Wait:
        """Names a wait while the `with` block runs; past `timeout` seconds it raises DeadlineExceeded."""
        return Wait(self, who, what, timeout)

    def waits(self) -> list[Wait]:
        """Who waits now, longest first."""
        return list(self._waits.values())

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Around work that blocks the loop itself: that time counts against nobody's deadline."""
        started = self.now()
        try:
            yield
        finally:
            self._blocked += self.now() - started

    # ------------------------------------------------------------------------------------- the deadline heap

    def _enter(self, wait: Wait) -> int:
        number = next(self._order)
        self._waits[number] = wait
        if wait.timeout is not None:
            heapq.heappush(self._deadlines, (self.now() - self._blocked + wait.timeout, number))
            if self._deadlines[0][1] == number:
                self._arm()
        return number

    def _leave(self, number: int) -> None:
        del self._waits[number]
        # A deadline that was met leaves its entry behind; drop those that have surfaced, and the timer with the last.
        while self._deadlines and self._deadlines[0][1] not in self._waits:
            heapq.heappop(self._deadlines)
        if not self._deadlines and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._deadlines[0][0] + self._blocked
        self._timer = asyncio.get_running_loop().call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        unblocked = self.now() - self._blocked
        while self._deadlines and self._deadlines[0][0] <= unblocked + 1e-9:
            _, number = heapq.heappop(self._deadlines)
            if number in self._waits:
                self._waits[number].expire()
        if self._deadlines:
            self._arm()


class Wait:
    """One named wait; a context manager around an `await`."""

    __slots__ = ("_cancelling", "_expired", "_number", "_task", "clock", "since", "timeout", "what", "who")

    def __init__(self, clock: Clock, who: str, what: str, timeout: float | None) -> None:
        self.clock = clock
        self.who = who
        self.what = what
        self.timeout = timeout
        self._expired = False

    def __enter__(self) -> Wait:
        task = asyncio.current_task()
        assert task is not None, "a wait needs a running task"
        self._task = task
        self._cancelling = task.cancelling()
        self.since = self.clock.now()
        self._number = self.clock._enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clock._leave(self._number)
        # As asyncio.timeout does: a cancellation that came from outside as well keeps travelling.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise DeadlineExceeded(f"{self} (deadline {self.timeout:g} s, see rollout.deadlines)") from error

    def expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __str__(self) -> str:
        return f"{self.who} waits for {self.what} since {self.clock.now() - self.since:.1f} s"


# ----------------------------------------------------------------------------------------------------- the loops


def run_wall(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run on the machine's time."""
    return asyncio.run(main(Clock()))


def run_virtual(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run on virtual time, from 0. Deterministic; raises Deadlock instead of hanging."""
    clock = Clock()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main(clock))


class _OrderedTimer(asyncio.TimerHandle):
    """Timers of equal time run in the order they were set; asyncio's own heap leaves that open."""

    __slots__ = ("sequence",)
    sequence: int

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _OrderedTimer):
            return NotImplemented
        return (self.when(), self.sequence) < (other.when(), other.sequence)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time jumps to the next timer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._now = 0.0
        self._clock = clock
        self._sequence = itertools.count()
        self._thread = threading.get_ident()
        # BaseEventLoop runs timers due before time() + resolution, so it must exceed 0 for them to be due at time().
        self._clock_resolution = 1e-9
        self._selector = self  # asked to `select` when nothing is ready

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _OrderedTimer(when, callback, args, self, context)
        timer.sequence = next(self._sequence)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def select(self, timeout: float | None) -> list[Any]:
        """Where a real loop would wait for I/O, this one moves time."""
        if timeout is None:
            raise Deadlock(self._describe_waiters())
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _describe_waiters(self) -> str:
        named = [
            f"  {wait.who} waits for {wait.what} since {self._now - wait.since:.1f} s" for wait in self._clock.waits()
        ]
        tasks = sorted(f"  task {task.get_name()} in {_where(task)}" for task in asyncio.all_tasks(self))
        return "\n".join([f"deadlock at virtual time {self._now:.3f}:", *named, *tasks])

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:  # signal handlers come through here too, on our own thread
            raise VirtualClockViolation("the virtual clock refuses callbacks from other threads")
        return self.call_soon(callback, *args, context=context)


def _refusal(method: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise VirtualClockViolation(f"the virtual clock refuses {method}: inject a modelled part instead")

    return refuse


for _method in (
    *("run_in_executor", "subprocess_exec", "subprocess_shell", "add_reader", "add_writer"),
    *("create_connection", "create_server", "create_datagram_endpoint", "create_unix_connection", "create_unix_server"),
    *("sock_recv", "sock_sendall", "sock_connect", "sock_accept", "connect_read_pipe", "connect_write_pipe"),
):
    setattr(VirtualLoop, _method, _refusal(_method))


def _where(task: asyncio.Task[Any]) -> str:
    """The innermost line of our own code a suspended task stands at."""
    frames = task.get_stack()
    if not frames:
        return "an unknown place"
    frame = frames[-1]
    return f"{frame.f_code.co_qualname} line {frame.f_lineno}"
