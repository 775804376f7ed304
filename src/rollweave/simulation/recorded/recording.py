"""A recorded run as a world to replay in: everything that came from outside comes again, when the recording says so.

`Gates` are what the parts wait behind; the player of the recording opens them. The trainer's, the engines' and the
hosts' parts compute nothing: they end what they were asked to do at the recorded moment, with the recorded result.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rollweave.clock import Clock
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.errors import WorkerDied
from rollweave.rewards.dispatch import Scored
from rollweave.rollout.link import Lease, Packet, Report
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics
from rollweave.trajectory import ENDLESS, Group, Outcome, Span, Trajectory, Transform, Turn, repeat_item
from rollweave.weights.buckets import Fingerprint

RECORDED = "recorded"
ZERO_TOKENS = repeat_item(np.zeros(1, np.int32), ENDLESS)
ZERO_LOGPROBS = repeat_item(np.zeros(1, np.float32), ENDLESS)


Gates = defaultdict[str, asyncio.Event]
"""Things that happen when the recording says so, by name."""


class RecordedClock(Clock):
    """Named timers do not fire by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self._timers: dict[str, Callable[[], None]] = {}

    def later(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        self._timers[name] = callback

    def fire(self, name: str) -> None:
        if callback := self._timers.pop(name, None):
            callback()


class RecordedTrainer:
    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._dead = False
        self._step = 0

    async def begin(self, step: int, stream: bool = False) -> None:
        self._step = step

    async def accumulate(self, groups: Sequence[Group]) -> None:
        pass

    async def finish(self) -> Metrics:
        await self._reach(f"train {self._step}")
        return {}

    async def publish(self, version: int) -> Fingerprint:
        await self._reach(f"weights.publish {int(version)}")
        return Fingerprint(version, RECORDED)

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        await self._reach(f"save {folder.name}")

    async def load(self, folder: Path) -> None:
        pass

    async def restart(self) -> None:
        self._dead = False

    def die(self) -> None:
        """What it does now fails, or what it does next."""
        self._dead = True
        for name, gate in self._gates.items():
            if name.startswith(("train ", "weights.publish ", "save ")):
                gate.set()

    async def _reach(self, gate: str) -> None:
        if not self._dead:
            await self._gates[gate].wait()
        if self._dead:
            raise WorkerDied("as recorded", "trainer")


class RecordedEngine:
    """Answers no request: episodes end as they were recorded."""

    def __init__(self, gates: Gates, first_step: int) -> None:
        self._gates = gates
        self._suspensions = 0
        self._stats = EngineStats()
        self.next_row = first_step

    async def suspend(self, asleep: bool = False) -> None:
        self._suspensions += 1

    async def resume(self) -> None:
        self._suspensions -= 1

    async def prepare(self, version: int) -> Fingerprint:
        await self._gates[f"weights.stage {int(version)}"].wait()
        return Fingerprint(version, RECORDED)

    async def commit(self, version: int) -> None:
        await self._gates[f"weights.commit {int(version)}"].wait()
        self._stats.version, self._stats.checksum = version, RECORDED

    async def stats(self) -> EngineStats:
        """Asked while it stands still, to check a commit, or once a step, for its row of metrics."""
        if not self._suspensions:
            step, self.next_row = self.next_row, self.next_row + 1
            await self._gates[f"row {step}"].wait()
        return self._stats

    async def generate(self, request: Request) -> Completion:
        return self._refuse()

    def abort(self, request_id: str) -> None:
        self._refuse()

    def release(self, trajectory: str) -> None:
        self._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise AssertionError("a replay has no episodes")


def discard(packet: Packet[Any]) -> None:
    """The host at the other end: reports come out of the recording."""


class RecordedRewards:
    """A reward back end that answers when the recording does."""

    def __init__(self) -> None:
        self._open: dict[str, Callable[[Scored], None]] = {}

    def call(self, trajectory: Trajectory, holder: int | None, done: Callable[[Scored], None]) -> None:
        self._open[trajectory.id] = done

    def give_up(self, attempt: str) -> None:
        del self._open[attempt]

    def answer(self, end: Mapping[str, Any]) -> None:
        """As `reward.end` says."""
        if done := self._open.pop(end["id"], None):
            rewards = {} if end["reward"] is None else {RECORDED: end["reward"]}
            beside = {"threads_left": end["threads_left"], "calls": end.get("calls", {})}
            done(Scored(end["id"], rewards, failure=end["cause"], **beside))


def report(lease: Lease, end: Mapping[str, Any], awaited: tuple[str, ...]) -> Report:
    """How an episode ended, from its `trajectory.end`: as many tokens, of that version, with that reward.

    Without a reward there, it came later, unless the episode was not wanted any more.
    """
    trajectory = Trajectory(lease.id, lease.group, lease.member, lease.task, admitted_version=lease.version)
    tokens, turns = end["tokens"], end["turns"]
    trajectory.turns = [Turn(Span(ZERO_TOKENS[:0])) for _ in range(turns)]
    if tokens:
        # All in one place, all as old as the oldest was: a replay looks at no token.
        logprobs = ZERO_LOGPROBS[:tokens]
        span = Span(ZERO_TOKENS[:tokens], logprobs, logprobs, end["version"], Transform())
        trajectory.turns[0].answer.append(span)
    trajectory.outcome = Outcome(end["outcome"])
    trajectory.cause = end["cause"]
    if end["reward"] is None:
        return Report(lease.id, trajectory, awaited=awaited or (RECORDED,))
    trajectory.rewards = {RECORDED: end["reward"]}
    return Report(lease.id, trajectory, end["reward_failed"])


def unseen_report(lease: Lease, failed: bool, awaited: tuple[str, ...]) -> Report:
    """Of an evaluation's episode: all that counts is whether it was scored later, or played again."""
    outcome = Outcome.ENV_FAILED if failed and not awaited else Outcome.FINISHED
    trajectory = Trajectory(lease.id, lease.group, lease.member, lease.task, outcome=outcome)
    return Report(lease.id, trajectory, awaited=awaited)
