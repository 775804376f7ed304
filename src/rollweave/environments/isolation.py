"""Process isolation: several environments share a process that can be killed when one of them hangs.

A caller gives up on a call by cancelling it, for example at its deadline. Then the whole process is killed, because
only that ends a call stuck in user code. The other environments of the process are rebuilt in another process, in
the call they were waiting in or at their next one: their seed and actions are replayed, if their class declares itself
`deterministic`. Without that declaration they fail, are counted, and their episodes are tried again.

The other kind of isolation, `async`, needs no code: `EnvironmentFactory` makes environments in the host's own loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rollweave.environments.protocol import MakeEnvironment, Observation, StepResult
from rollweave.errors import EnvironmentFailed, RollweaveError
from rollweave.process.child import Child, ChildDied
from rollweave.tasks import Task


class EnvironmentPool:
    """Makes environments in processes of their own. It is called like an `EnvironmentFactory`."""

    def __init__(self, factory: MakeEnvironment, per_process: int) -> None:
        self._factory = factory
        self._per_process = per_process
        self.children: list[Child] = []
        self._starting = asyncio.Lock()
        self._closed = False
        self.killed = 0
        """Number of processes killed because a caller gave up on a call."""
        self.rebuilt = 0
        """Number of episodes replayed in another process after theirs had ended."""
        self.lost = 0
        """Number of episodes lost with their process because their class does not declare itself deterministic."""

    def __call__(self, task: Task) -> IsolatedEnvironment:
        return IsolatedEnvironment(self, task)

    async def child_with_room(self) -> Child:
        if self._per_process == 1:
            return self._running_child() or await self._start_child()
        async with self._starting:  # so that environments that arrive together share the process they start
            return self._running_child() or await self._start_child()

    def _running_child(self) -> Child | None:
        if self._closed:
            raise EnvironmentFailed("the environments of this run are closed")
        self.children = [child for child in self.children if child.alive]
        return next((child for child in self.children if len(child.slots) < self._per_process), None)

    async def _start_child(self) -> Child:
        import cloudpickle  # type: ignore[import-untyped]  # comes with gymnasium; also carries classes that a notebook defines

        child = await Child.start(cloudpickle.dumps(self._factory), EnvironmentFailed)
        if self._closed:
            child.kill()
        self.children.append(child)
        return child

    async def close(self) -> None:
        """End all processes. Episodes that still run fail at once."""
        self._closed = True
        for child in self.children:
            child.kill()


class IsolatedEnvironment:
    """An environment in another process. It remembers its episode, to replay it if the process ends."""

    interruptible = False
    """Giving up on a call kills the process. So a caller that only cancels its episode waits for the call's end."""

    def __init__(self, pool: EnvironmentPool, task: Task) -> None:
        self._pool = pool
        self._task = task
        self._child: Child | None = None
        self._slot = -1
        self._past: list[tuple[str, tuple[Any, ...], Any]] = []
        self.deterministic = False

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        self._past = []
        observation: Observation = await self._call("reset", seed, dict(data))
        return observation

    async def step(self, action: str) -> StepResult:
        return StepResult(*await self._call("step", action))

    async def scripted_action(self, seed: int) -> str:
        return str(await self._call("scripted_action", seed))

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is None or not child.alive:
            return
        try:
            await self._ask(child, "close")
        except ChildDied:
            pass  # it is closed with its process
        finally:
            child.slots.discard(self._slot)

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method, in this process or, if it ends, in another. Each death fails one caller, so the loop ends."""
        while True:
            try:
                child = await self._living_child(method)
                value = await self._ask(child, method, *arguments)
            except ChildDied as death:
                if death.caused_by_call:
                    self._forget()
                    raise EnvironmentFailed(f"{self._task.environment}.{method}: {death}") from death
            else:
                if method != "scripted_action":
                    self._past.append((method, arguments, value))
                return value

    async def _ask(self, child: Child, method: str, *arguments: Any) -> Any:
        try:
            return await child.call(self._slot, method, *arguments)
        except asyncio.CancelledError:
            self._pool.killed += child.alive
            child.kill("its process was killed because another environment in it hung")
            self._forget()
            raise

    def _forget(self) -> None:
        self._child = None
        self._past = []

    async def _living_child(self, method: str) -> Child:
        if self._child is not None and self._child.alive:
            return self._child
        if method != "reset" and not (self._past and self.deterministic):
            self._give_up()
        child = await self._pool.child_with_room()
        self._slot = child.take_slot()
        try:
            self.deterministic = await self._ask(child, "make", self._task)
            if self._past:
                await self._replay(child)
        except RollweaveError:
            child.slots.discard(self._slot)
            raise
        self._child = child
        return child

    def _give_up(self) -> None:
        if self._child is None:
            raise EnvironmentFailed(f"{self._task.environment}: no episode is running: call reset first")
        self._pool.lost += 1
        raise EnvironmentFailed(
            f"{self._task.environment}: its process was ended by another environment in it, and the episode cannot be "
            "replayed: set `deterministic = True` on the class if the same seed and actions give the same observations"
        )

    async def _replay(self, child: Child) -> None:
        for method, arguments, value in self._past:
            again = await self._ask(child, method, *arguments)
            if _seen(method, again) != _seen(method, value):
                raise EnvironmentFailed(
                    f"{self._task.environment} declares itself deterministic, but {method}{arguments} gave {again!r} "
                    f"after {value!r} for the same seed and actions: remove `deterministic = True`, or fix the seeding"
                )
        self._pool.rebuilt += 1


def _seen(method: str, value: Any) -> Any:
    """The part of a result that must be equal in a replay: without `info`, which may contain times."""
    return value[:-1] if method == "step" else value
