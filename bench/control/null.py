"""The parts that do nothing: what is left to measure is everything around them.

The engine answers every request of one tick of the loop in the next, as an engine in another process would at
best: each turn suspends its episode once, so that all of them really are under way at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.environments.protocol import Observation, StepResult
from rollweave.training.checkpoint import DriverFiles
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Group, Span, TokenIds, Trajectory, Transform, logprob_array, token_ids
from rollweave.weights.buckets import Fingerprint

TURNS = 10
OBSERVATION = token_ids(range(12))
ANSWER = token_ids([1, 2, 3, 4])
LOGPROBS = logprob_array([-1.0] * len(ANSWER))
TRANSFORM = Transform()


class NullEngine:
    """Answers at once with a few tokens."""

    def __init__(self) -> None:
        self.answered = 0
        self._version = 0
        self._asked: list[tuple[str, asyncio.Future[Completion]]] = []

    async def generate(self, request: Request) -> Completion:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Completion] = loop.create_future()
        if not self._asked:
            loop.call_soon(self._answer)
        self._asked.append((request.id, answer))
        return await answer

    def _answer(self) -> None:
        asked, self._asked = self._asked, []
        self.answered += len(asked)
        for id, answer in asked:
            if not answer.done():
                span = Span(ANSWER, LOGPROBS, LOGPROBS, self._version, TRANSFORM)
                answer.set_result(Completion(id, [span], "stop", "left"))

    def abort(self, request_id: str) -> None:
        pass

    def release(self, trajectory: str) -> None:
        pass

    async def suspend(self, asleep: bool = False) -> None:
        pass

    async def resume(self) -> None:
        pass

    async def prepare(self, version: int) -> Fingerprint:
        return Fingerprint(version, "")

    async def commit(self, version: int) -> None:
        self._version = version

    async def stats(self) -> EngineStats:
        return EngineStats(sampled_tokens=self.answered * len(ANSWER), version=self._version)


class NullEnvironment:
    """An episode of ten turns that take no time."""

    def __init__(self) -> None:
        self._left = TURNS

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        return "go"

    async def step(self, action: str) -> StepResult:
        self._left -= 1
        return StepResult("go on", reward=1.0, done=self._left == 0)

    async def close(self) -> None:
        pass


class NullDialogue:
    def open(self, observation: Observation) -> TokenIds:
        return OBSERVATION

    def reply(self, observation: Observation, answered_end: bool) -> TokenIds:
        return OBSERVATION

    def ended(self, answer: TokenIds) -> bool:
        return True


class NullScorer:
    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        return ()

    async def score(self, trajectory: Trajectory) -> None:
        trajectory.rewards = {"environment": 1.0}


class NullTrainer:
    async def begin(self, step: int, stream: bool = False) -> None:
        pass

    async def accumulate(self, groups: Sequence[Group]) -> None:
        pass

    async def finish(self) -> Metrics:
        return {}

    async def publish(self, version: int) -> Fingerprint:
        return Fingerprint(version, "")

    async def save(self, folder: Path, driver: DriverFiles) -> None:
        pass

    async def load(self, folder: Path) -> None:
        pass

    async def restart(self) -> None:
        pass
