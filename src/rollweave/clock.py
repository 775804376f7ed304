"""Two clocks for the same asyncio code: the wall clock and the virtual clock.

The control plane never asks the machine for the time. It is given a `Clock`, which reads the running
loop's time, so the same code runs on the wall clock (`run_wall`) and on the virtual clock (`run_virtual`),
where time jumps to the next event and an hour passes in milliseconds.

The virtual loop orders events by (time, sequence), so two runs of the same program interleave identically. When
nothing is ready and no timer is pending, it raises `Deadlock` with a list of all waits. It refuses sockets, threads
and subprocesses, because it cannot control their timing.

Every wait has a name, an owner and, usually, a deadline:

    with clock.wait("trainer", "batch 7", timeout=60):
        batch = await something

Waits with the same timeout expire in the order they began. So each timeout has a queue (a dict, so that any wait can
leave it) and the whole clock has one loop timer, which is set for the earliest first wait of all queues. The timer
does not change while other waits come and go: a wait that ends in time costs two dict operations.
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
"""Timers whose times differ by less than this are due together."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DeadlineExceeded(RollweaveError, TimeoutError):
    """A wait took longer than its deadline. The message says who waited for what, and how long."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is pending, so all tasks would wait forever."""


class VirtualClockViolation(RuntimeError):
    """Code on the virtual clock tried to use a socket, a thread or a process."""


class Waiting(NamedTuple):
    """An open wait as plain data: who waits, for what, and for how long already."""

    who: str
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.who} waits for {self.what} since {self.seconds:.1f} s"


WIND_DOWN_SECONDS = 10.0
"""The time that a late wait has to end by itself after its `late` function was called (see `Clock.wait`)."""


class Clock:
    """Provides time and named waits for everything that runs on one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[float | None, dict[Wait, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._blocked = 0.0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which this clock was first used. It is kept, because asking asyncio is a system call."""
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
        """Return an awaitable that ends after so many seconds.

        It is a future with a timer: the coroutines of `asyncio.sleep` would make a simulation a tenth slower.
        """
        if seconds <= 0:
            return asyncio.sleep(0)
        loop = self._loop or self.loop
        waking = loop.create_future()
        loop.call_later(seconds, _wake, waking)
        return waking

    def later(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        """Call the callback after so many seconds. A replay uses the name to call it when the recorded run did."""
        self.loop.call_later(seconds, callback)

    def wait(self, who: str, what: str, timeout: float | None = None, late: Callable[[], None] | None = None) -> Wait:
        """Name a wait while the `with` block runs. After `timeout` seconds the block raises DeadlineExceeded.

        If `late` is given, it is called instead, to end the awaited operation in an orderly way. If the block has not
        ended `WIND_DOWN_SECONDS` later, it raises DeadlineExceeded after all.
        """
        return Wait(self, who, what, timeout, late)

    def waits(self) -> list[Wait]:
        """All open waits, the longest first."""
        return sorted((wait for queue in self._queues.values() for wait in queue), key=lambda wait: wait.since)

    def waiting(self, most: int | None = None) -> list[Waiting]:
        """The open waits as plain data, which other processes can read although their clocks differ."""
        now = self.now()
        return [Waiting(wait.who, wait.what, now - wait.since) for wait in self.waits()[:most]]

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Mark work that blocks the loop itself. Its time counts towards no deadline."""
        started = self.now()
        try:
            yield
        finally:
            self._blocked += self.now() - started

    # ----------------------------------------------------------------------------------------------- deadlines

    def _queue(self, wait: Wait, timeout: float | None, now: float) -> dict[Wait, None]:
        """Put a wait into the queue of its timeout, and return the queue."""
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
        """Called by the timer: end the late waits, and set the timer for the next one."""
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
    if not waking.done():  # the sleeping task may have been cancelled
        waking.set_result(None)


class Wait:
    """One named wait: a context manager around an `await`. It may be entered again after it has ended."""

    __slots__ = (
        *("_cancelled", "_cancelling", "_late", "_queue", "_task"),
        *("clock", "due", "expired", "since", "timeout", "what", "who"),
    )
    due: float
    """The time of its deadline, without the time in which the loop was blocked."""

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
        """Whether the wait is late, or was ended as if it were."""
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
        # As in `asyncio.timeout`: if the task was also cancelled from outside, that cancellation goes on.
        if self._cancelled and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self.too_late() from error

    @property
    def open(self) -> bool:
        """Whether its block is still running."""
        return self in self._queue

    def expire(self) -> None:
        """End an open wait: by its `late` function if that was not called yet, else by cancelling the task."""
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
    """Run the coroutine on the machine's time."""
    collect_rarely()
    return asyncio.run(main(Clock()))


def collect_rarely(objects: int = 50_000, generations: int = 20) -> None:
    """Make Python's cycle collector run less often: at its usual rate it takes half of the time of 8,192 episodes.

    The collector visits all live objects again and again. The objects of the control plane live for a whole episode and
    are hardly ever part of a cycle. `objects` is the number of new objects after which it runs.
    """
    gc.set_threshold(objects, generations, generations)


def run_virtual(main: Callable[[Clock], Coroutine[Any, Any, T]], clock: Clock | None = None) -> T:
    """Run the coroutine on virtual time, from 0. The run is deterministic, and raises Deadlock instead of hanging."""
    clock = clock or Clock()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main(clock))


class _Soon(asyncio.Handle):
    """A handle that is created without the check for the loop's debug mode, which saves time."""

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

    Timers of equal time run in the order they were set, which asyncio's own heap does not guarantee. The heap holds
    only times, and a dict holds the timers of each time: a simulation sets millions of timers, and a heap of tuples
    that are spread over half a gigabyte of memory is slow.
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
        """Roughly the number of cancelled timers that are still kept."""

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
        """Run the ready callbacks in order, after the timers that are due; with nothing ready, time jumps.

        The method goes on until the loop is stopped, because a return to asyncio between two events takes time too.
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
                    except BaseException as error:  # as in `Handle._run`: the loop's handler reports it
                        self._tell(handle, error)
            if self._stopping:
                return

    def _collect_due(self) -> None:
        """Make the timers that are due ready, in the order of their times; with nothing ready, let time jump."""
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
        if threading.get_ident() != self._thread:  # signal handlers call this too, on our own thread
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
    """The line at which a suspended task waits."""
    frames = task.get_stack()
    if not frames:
        return "an unknown place"
    frame = frames[-1]
    return f"{frame.f_code.co_qualname} line {frame.f_lineno}"
