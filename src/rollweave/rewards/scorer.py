"""Scores a finished trajectory: the sum of its step rewards, plus the functions the job names, each times its weight.

What a reward is: a function of a finished trajectory.

    def score(trajectory: Trajectory) -> float: ...

It may be `async`, and may return a `RewardResult` to name its parts. It should be pure: a trajectory can be scored
again after a crash. The functions of one trajectory run side by side. A plain (not `async`) function would hold up the
loop while it computes or sleeps, so it is called in a thread of its own (`call_in_thread`); on the virtual clock,
which allows no threads, it stays on the loop (`call_on_loop`).

This is the boundary to user code: a function that raises or returns anything but a finite number makes the attempt
`reward-failed`, with the function, the value and the fix in the message. It is never a reward of 0.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollweave.clock import Clock
from rollweave.config.rewards import READY_REWARDS, RewardConfig
from rollweave.errors import ConfigError, RewardFailed, first_cause
from rollweave.seeds import derive
from rollweave.targets import blame, load_target
from rollweave.trajectory import Trajectory


@dataclass(slots=True)
class RewardResult:
    value: float
    parts: dict[str, float] = field(default_factory=dict)
    """Shown in transcripts; not added to `value`."""


ENVIRONMENT = "environment"
"""The name of the step rewards' sum among a trajectory's rewards."""

PARTS = "reward_parts"
"""Where `trajectory.info` keeps the parts that functions name."""

THREADS_LEFT = "reward_threads_left"
"""Where `trajectory.info` counts plain functions that were given up while they ran: a thread cannot be stopped."""

CALLS = "reward_calls"
"""Where `trajectory.info` keeps what the calls of functions elsewhere took, by name (`CallReport`)."""

CallPlain = Callable[[Callable[[Trajectory], Any], Trajectory], Awaitable[Any]]
"""How a plain function is called from the loop."""


async def call_on_loop(function: Callable[[Trajectory], Any], trajectory: Trajectory) -> Any:
    return function(trajectory)


async def call_in_thread(function: Callable[[Trajectory], Any], trajectory: Trajectory) -> Any:
    """Calls it in a daemon thread, so that neither the loop nor the end of the process waits for it.

    If this call is cancelled first, the thread is left to itself and counted on the trajectory.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(function(trajectory))
        except BaseException as error:  # the boundary between threads: it is raised again on the loop
            answer.set_exception(error)
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name=f"reward of {trajectory.id}", daemon=True).start()
    try:
        await ended.wait()
    except asyncio.CancelledError:
        trajectory.info[THREADS_LEFT] = trajectory.info.get(THREADS_LEFT, 0) + 1
        raise
    return answer.result()


@dataclass(frozen=True, slots=True)
class NamedReward:
    """One function of the job, called and checked."""

    name: str
    function: Callable[[Trajectory], Any]
    weight: float
    target: str
    """Where the function is, for messages."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks that it scores; none: all."""

    @classmethod
    def load(cls, config: RewardConfig, base: Path, clock: Clock | None = None, seed: int = 0) -> NamedReward:
        """`clock` and `seed` are for a function that is called elsewhere."""
        function = _load(config, base, clock or Clock(), seed)
        if not callable(function):
            raise ConfigError(f"{config.function} is a {type(function).__name__}: name a function of a trajectory")
        return cls(config.shown_name, function, config.weight, config.function or config.shown_name, config.tasks)

    def scores(self, trajectory: Trajectory) -> bool:
        return not self.tasks or trajectory.task.environment in self.tasks

    @property
    def plain(self) -> bool:
        """Whether calling it computes the reward, instead of only making something to await."""
        called = getattr(self.function, "__call__", None)  # noqa: B004 (an object may be callable by an async method)
        return not inspect.iscoroutinefunction(self.function) and not inspect.iscoroutinefunction(called)

    async def __call__(self, trajectory: Trajectory, call_plain: CallPlain = call_on_loop) -> RewardResult:
        value = await self._call(trajectory, call_plain)
        result = value if isinstance(value, RewardResult) else RewardResult(value)
        number = as_number(result.value)
        if number is None:
            raise RewardFailed(
                f"{self.target} returned {value!r} for {trajectory.id}: a reward must be a finite number; "
                "return one on every path, or raise an exception if the trajectory cannot be scored"
            )
        return RewardResult(number, result.parts)

    async def _call(self, trajectory: Trajectory, call_plain: CallPlain) -> Any:
        call = call_plain if self.plain else call_on_loop
        try:
            value = await call(self.function, trajectory)
            return await value if inspect.isawaitable(value) else value
        except RewardFailed:
            raise
        except (Exception, SystemExit) as error:  # the boundary: a user's function may raise anything
            file = getattr(getattr(self.function, "__code__", None), "co_filename", None)
            raise RewardFailed(f"{self.target} raised for {trajectory.id}: {blame(error, file)}") from error


def _load(config: RewardConfig, base: Path, clock: Clock, seed: int) -> object:
    if (ready := config.ready) is not None:
        make: Any = load_target(READY_REWARDS[ready], base)
        return make(getattr(config, ready))
    if config.scheme == "local":
        return load_target(config.function.removeprefix("local://"), base)
    from rollweave.rewards.remote import RemoteReward  # it imports this module

    return RemoteReward(config, base, clock, derive(seed, "reward", config.shown_name))


class Scorer:
    """Fills in `trajectory.rewards` by name, weighted; parts that functions name go to `trajectory.info`."""

    def __init__(
        self,
        rewards: Sequence[RewardConfig],
        base: Path,
        given: Sequence[NamedReward] = (),
        call_plain: CallPlain = call_on_loop,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        self.rewards = [*(NamedReward.load(config, base, clock, seed) for config in rewards), *given]
        self._call_plain = call_plain
        taken = {ENVIRONMENT}
        for reward in self.rewards:
            if reward.name in taken:
                raise ConfigError(f"rewards: two are called {reward.name!r}: give {reward.target} another `name`")
            taken.add(reward.name)

    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        """The named rewards of its task. Without any, `score` does not wait for anything."""
        return tuple(reward.name for reward in self.rewards if reward.scores(trajectory))

    async def aclose(self) -> None:
        """End the processes and connections of functions that are called elsewhere."""
        for reward in self.rewards:
            if (aclose := getattr(reward.function, "aclose", None)) is not None:
                await aclose()

    async def score(self, trajectory: Trajectory) -> None:
        rewards = [reward for reward in self.rewards if reward.scores(trajectory)]
        results = await _side_by_side([reward(trajectory, self._call_plain) for reward in rewards])
        scores = {ENVIRONMENT: sum(turn.reward for turn in trajectory.turns)}
        named = list(zip(rewards, results, strict=True))
        scores |= {reward.name: reward.weight * result.value for reward, result in named}
        trajectory.rewards = scores
        if parts := {reward.name: result.parts for reward, result in named if result.parts}:
            trajectory.info[PARTS] = parts


async def _side_by_side(calls: Sequence[Coroutine[Any, Any, RewardResult]]) -> list[RewardResult]:
    """All of them at once. The first that fails ends the others: the trajectory cannot be scored any more."""
    if len(calls) <= 1:  # no task, no turn of the loop
        return [await call for call in calls]
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(call) for call in calls]
    except ExceptionGroup as failures:
        raise first_cause(failures) from failures
    return [task.result() for task in running]


def as_number(value: Any) -> float | None:
    """A finite float, or None. Numpy's and torch's scalars are numbers; text that looks like one is a mistake."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
