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

Waits with the same timeout expire in the order they began, so each timeout has a queue (a dict, to leave it from
anywhere) and the whole clock one loop timer, which is set for the earliest head and left alone while waits come
and go: a wait that ends in time costs two dict operations.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar, TypeVarTuple

from rollweave.errors import RollweaveError

SAME_TIME = 1e-9
"""Timers that are no further apart than this are due together."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DeadlineExceeded(RollweaveError, TimeoutError):
    """A wait outlived its deadline. Says who waited for what, and how long."""


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is pending: everybody waits for somebody."""


class VirtualClockViolation(RuntimeError):
    """Code on the virtual clock tried to touch the outside world."""


class Waiting(NamedTuple):
    """A wait at one moment."""

    who: str
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.who} waits for {self.what} since {self.seconds:.1f} s"


WIND_DOWN_SECONDS = 10.0
"""How long a wait that can be ended in order (see `Wait`) has for it once it is late."""


class Clock:
    """Time and named waits for everything that runs on one loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[float | None, dict[Wait, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._blocked = 0.0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop this clock belongs to: the one it was first used on. (Asking asyncio is a system call each time.)"""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    @property
    def is_virtual(self) -> bool:
        """Whether its time is that of a `VirtualLoop`, which refuses threads."""
        return isinstance(self.loop, VirtualLoop)

    def now(self) -> float:
        return (self._loop or self.loop).time()

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Await it. (A future and a timer: the coroutines of `asyncio.sleep` would cost a simulation a tenth.)"""
        if seconds <= 0:
            return asyncio.sleep(0)
        loop = self._loop or self.loop
        waking = loop.create_future()
        loop.call_later(seconds, _wake, waking)
        return waking

    def later(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        """Call this after a while. The name says what for: a replay calls it when the recording does."""
        self.loop.call_later(seconds, callback)

    def wait(self, who: str, what: str, timeout: float | None = None, late: Callable[[], None] | None = None) -> Wait:
        """Names a wait while the `with` block runs; past `timeout` seconds it raises DeadlineExceeded.

        With `late`, that is called instead, to make what is awaited end in order; if it has not ended
        `WIND_DOWN_SECONDS` later, DeadlineExceeded is raised after all.
        """
        return Wait(self, who, what, timeout, late)

    def waits(self) -> list[Wait]:
        """Who waits now, longest first."""
        return sorted((wait for queue in self._queues.values() for wait in queue), key=lambda wait: wait.since)

    def waiting(self, most: int | None = None) -> list[Waiting]:
        """The same as plain values, for whoever is elsewhere: other processes have other times."""
        now = self.now()
        return [Waiting(wait.who, wait.what, now - wait.since) for wait in self.waits()[:most]]

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Around work that blocks the loop itself: that time counts against nobody's deadline."""
        started = self.now()
        try:
            yield
        finally:
            self._blocked += self.now() - started

    # ----------------------------------------------------------------------------------------------- deadlines

    def _queue(self, wait: Wait, timeout: float | None, now: float) -> dict[Wait, None]:
        """Where a wait that has `timeout` seconds from now on is kept."""
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._queues[timeout] = {}
        queue[wait] = None
        if timeout is not None:
            wait.due = due = now - self._blocked + timeout
            if due < self._timer_due:
                self._set_timer(due)
        return queue

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(due + self._blocked, self._expire)
        self._timer_due = due

    def _expire(self) -> None:
        """The timer: ends what is late, and is set again for whoever is next."""
        self._timer, self._timer_due = None, math.inf
        unblocked = self.now() - self._blocked + 1e-9
        late = [
            wait for queue in self._timed() for wait in itertools.takewhile(lambda wait: wait.due <= unblocked, queue)
        ]
        for wait in sorted(late, key=lambda wait: wait.due):
            wait.expire()
        self._queues = {timeout: queue for timeout, queue in self._queues.items() if queue}
        if heads := [next(iter(queue)).due for queue in self._timed()]:
            self._set_timer(min(heads))

    def _timed(self) -> list[dict[Wait, None]]:
        return [queue for timeout, queue in self._queues.items() if timeout is not None]


def _wake(waking: asyncio.Future[None]) -> None:
    if not waking.done():  # whoever slept may have been cancelled
        waking.set_result(None)


class Wait:
    """One named wait; a context manager around an `await`. It may be entered again, once it has ended."""

    __slots__ = (
        *("_cancelled", "_cancelling", "_late", "_queue", "_task"),
        *("clock", "due", "expired", "since", "timeout", "what", "who"),
    )
    due: float
    """In time that counts against deadlines."""

    def __init__(
        self, clock: Clock, who: str, what: str, timeout: float | None, late: Callable[[], None] | None
    ) -> None:
        self.clock = clock
        self.who = who
        self.what = what
        self.timeout = timeout
        self._late = late
        self._queue: dict[Wait, None] = {}

    def __enter__(self) -> Wait:
        clock = self.clock
        self.expired = False
        """Late, or told to be."""
        self._cancelled = False
        loop = clock._loop or clock.loop
        task = asyncio.current_task(loop)
        assert task is not None, "a wait needs a running task"
        self._task = task
        self._cancelling = task.cancelling()
        self.since = now = loop.time()
        self._queue = clock._queue(self, self.timeout, now)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._queue[self]
        # As asyncio.timeout does: a cancellation that came from outside as well keeps travelling.
        if self._cancelled and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self.too_late() from error

    @property
    def open(self) -> bool:
        """Whether its block is still running."""
        return self in self._queue

    def expire(self) -> None:
        """End an open wait: in order if there is a way that was not tried yet, else by cancelling."""
        late = None if self.expired else self._late
        self.expired = True
        self._cancelled = late is None
        del self._queue[self]
        self._queue = self.clock._queue(self, None if late is None else WIND_DOWN_SECONDS, self.clock.now())
        if late is None:
            self._task.cancel()
        else:
            late()

    def too_late(self) -> DeadlineExceeded:
        limit = f" (deadline {self.timeout:g} s, see rollout.deadlines)" if self.timeout is not None else ""
        return DeadlineExceeded(f"{self}{limit}")

    def __str__(self) -> str:
        return f"{self.who} waits for {self.what} since {self.clock.now() - self.since:.1f} s"


# ----------------------------------------------------------------------------------------------------- the loops


def run_wall(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run on the machine's time."""
    collect_rarely()
    return asyncio.run(main(Clock()))


def collect_rarely(objects: int = 50_000, generations: int = 20) -> None:
    """Python's cycle collector, at its usual pace, would take half of the time of 8,192 episodes at once.

    It walks everything that lives, over and over, and what the control plane makes lives for a whole episode and is
    hardly ever part of a cycle. `objects`: how many more there are to be before it looks.
    """
    gc.set_threshold(objects, generations, generations)


def run_virtual(main: Callable[[Clock], Coroutine[Any, Any, T]], clock: Clock | None = None) -> T:
    """Run on virtual time, from 0. Deterministic; raises Deadlock instead of hanging."""
    clock = clock or Clock()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main(clock))


class _Soon(asyncio.Handle):
    """A handle that is made without asking whether the loop is in debug mode."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: asyncio.AbstractEventLoop, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(
        self, when: float, callback: Any, args: Any, loop: asyncio.AbstractEventLoop, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = True

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None  # type: ignore[assignment]
            self._loop._timer_handle_cancelled(self)  # type: ignore[attr-defined]


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time jumps to the next timer.

    Timers of equal time run in the order they were set; asyncio's own heap leaves that open. The heap holds bare
    times, and each time has its timers beside it: a simulation sets millions of timers, and a heap of tuples that are
    spread over half a gigabyte is slow to walk.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._now = 0.0
        self._clock = clock
        self._thread = threading.get_ident()
        self._times: list[float] = []
        self._timers: dict[float, list[asyncio.TimerHandle]] = {}
        self._given_up = 0
        """Timers that were cancelled and are still kept, more or less."""

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        if when in self._timers:
            self._timers[when].append(timer)
        else:
            self._timers[when] = [timer]
            heapq.heappush(self._times, when)
        return timer

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._given_up += 1
        if self._given_up > 1000 and self._given_up > len(self._timers) // 2:
            kept = {when: [timer for timer in timers if not timer._cancelled] for when, timers in self._timers.items()}
            self._timers = {when: timers for when, timers in kept.items() if timers}
            self._times = list(self._timers)
            heapq.heapify(self._times)
            self._given_up = 0

    def _run_once(self) -> None:
        """What is ready runs, in order, after the timers whose time has come; with nothing ready, time jumps.

        Goes on until the loop is stopped: coming back to asyncio between two events is work too.
        """
        ready = self._ready
        while True:
            self._collect_due()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # as `Handle._run` does: the loop's handler is told
                        self._tell(handle, error)
            if self._stopping:
                return

    def _collect_due(self) -> None:
        """Make ready whose time has come, in the order of their times."""
        times, ready = self._times, self._ready
        while times:
            if not ready and not self._stopping:
                self._now = max(self._now, times[0])
            elif times[0] >= self._now + SAME_TIME:
                return
            for timer in self._timers.pop(heapq.heappop(times)):
                if timer._cancelled:
                    self._given_up -= 1
                else:
                    ready.append(timer)
        if not ready and not self._stopping:
            raise Deadlock(self._describe_waiters())

    def _tell(self, handle: asyncio.Handle, error: BaseException) -> None:
        self.call_exception_handler({"message": f"exception in {handle!r}", "exception": error, "handle": handle})

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
