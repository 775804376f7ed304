"""EnvHost: runs many EnvManagers on one loop.

Inline it lives in the driver; on Ray it is an actor. It holds nothing that cannot be leased again. Whatever it is
told, in whatever order: every lease it begins is reported once. A `Cancel` may overtake its lease on the way; then
the lease is reported, unplayed, when it arrives. One that comes after the report ends only what concerns its reward.

An episode whose reward takes time is reported first, which frees its slot. The host then computes the reward beside
other episodes, without being asked: a question would cost a journey to the driver and back. `Score` asks it for the
reward of a trajectory that another host played.
"""

from __future__ import annotations

import asyncio
import itertools

from rollweave.fleet.fleet import EngineId, FleetUpdate
from rollweave.fleet.router import Route
from rollweave.observability.waits import SCORING
from rollweave.rewards.dispatch import NOT_WANTED, Scored
from rollweave.rollout.link import Cancel, Endpoint, LateAnswers, Lease, Moved, Score, ToDriver, ToHost, Transport
from rollweave.rollout.manager import EnvManager, Stage, score
from rollweave.trajectory import Trajectory


class EnvHost:
    def __init__(self, stage: Stage, transport: Transport) -> None:
        self._stage = stage
        self._tasks: asyncio.TaskGroup | None = None
        self._early: dict[str, Lease | Score] = {}
        """By attempt, or by the call of a `Score`, as everything below: heard before `run` began."""
        self._playing: dict[str, EnvManager] = {}
        self._cancelled: set[str] = set()
        """Leases that were cancelled before they, or their `Score`, arrived."""
        self._scoring: dict[str, asyncio.Task[None]] = {}
        self._moves = itertools.count()
        self.link: Endpoint[ToDriver, ToHost] = Endpoint(transport, self._hear)
        stage.proxy.on_route = self._tell_moved

    async def run(self) -> None:
        """Play what is leased, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            early, self._early = self._early, {}
            for attempt, message in early.items():
                self._begin(attempt, message)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None  # what still arrives is not begun

    def _hear(self, message: ToHost) -> None:
        match message:
            case Lease(id=attempt) | Score(call=attempt):
                self._begin(attempt, message)
            case Cancel(attempt=attempt):
                self._cancel(attempt)
            case FleetUpdate():
                self._stage.proxy.update(message)

    def _cancel(self, attempt: str) -> None:
        if attempt in self._playing:
            self._playing[attempt].cancel()
        elif attempt in self._scoring:
            self._scoring.pop(attempt).cancel()
        elif not self._is_over(attempt):
            self._cancelled.add(attempt)

    def _is_over(self, attempt: str) -> bool:
        """Whether all that was asked for it has been begun, and has ended."""
        asked = self.link.has_heard(attempt) or self.link.has_heard(f"score.{attempt}")
        return asked and attempt not in self._early

    def _begin(self, attempt: str, message: Lease | Score) -> None:
        if self._tasks is None:  # heard before run() began, or after it ended
            self._early[attempt] = message
        elif isinstance(message, Lease):
            self._begin_playing(message, self._tasks)
        elif attempt in self._cancelled:  # a Cancel has overtaken it
            self._cancelled.discard(attempt)
        else:
            self._begin_scoring(message.trajectory, message.call, self._tasks)

    def _begin_playing(self, lease: Lease, tasks: asyncio.TaskGroup) -> None:
        manager = self._playing[lease.id] = EnvManager(self._stage, lease)
        manager.cancelled = lease.id in self._cancelled
        self._cancelled.discard(lease.id)
        tasks.create_task(self._play(manager), name=manager.name)

    def _tell_moved(self, attempt: str, route: Route) -> None:
        moved = Moved(attempt, route, next(self._moves))
        self._playing[attempt].moved = moved
        self.link.say(f"moved.{moved.number}", moved)

    def tell_refused(self, engine: EngineId, answers: int) -> None:
        """An engine that was given up has answered all the same."""
        self.link.say(f"refused.{next(self._moves)}", LateAnswers(engine, answers))

    async def _play(self, manager: EnvManager) -> None:
        report = await manager.play()
        report.moved = manager.moved
        del self._playing[report.attempt]
        self.link.say(report.attempt, report)
        if report.awaited and not manager.cancelled and self._tasks is not None:
            self._begin_scoring(report.trajectory, report.attempt, self._tasks)

    def _begin_scoring(self, trajectory: Trajectory, call: str, tasks: asyncio.TaskGroup) -> None:
        name = f"{SCORING}{trajectory.id}"
        self._scoring[call] = tasks.create_task(self._score(trajectory, call), name=name)

    async def _score(self, trajectory: Trajectory, call: str) -> None:
        try:
            scored = await score(self._stage, trajectory, f"{SCORING}{trajectory.id}")
        except asyncio.CancelledError:
            if call in self._scoring:  # the host ends
                raise
            scored = Scored.of(trajectory, failure=NOT_WANTED)
        wanted = self._scoring.pop(call, None) is not None
        if wanted or scored.threads_left or scored.calls:  # what was left behind or paid for counts, wanted or not
            self.link.say(f"scored.{call}", scored)
