"""The function's side of the wire: reads a request, calls the reward, writes the answer.

Every way to serve a reward uses it: a process of a pool, a replica of Ray Serve, a function platform. What the reward
itself gets wrong is an answer with `error`, because another try would give the same.
"""

from __future__ import annotations

import time
from pathlib import Path

from rollweave.config.rewards import RewardConfig
from rollweave.errors import RewardFailed
from rollweave.rewards.scorer import CallPlain, NamedReward, call_on_loop
from rollweave.rewards.wire import RewardAnswer, read_request, write_answer


class Answerer:
    """Answers the calls of one reward function."""

    def __init__(self, target: str, base: Path = Path(), call_plain: CallPlain = call_on_loop) -> None:
        self._reward = NamedReward.load(RewardConfig(function=target), base)
        self._call_plain = call_plain
        self._cold = True

    async def answer(self, body: bytes | str) -> str:
        """Raises WrongMessage if the body is no request."""
        cold, self._cold = self._cold, False
        key, trajectory = read_request(body)
        began = time.perf_counter()
        try:
            result = await self._reward(trajectory, self._call_plain)
        except RewardFailed as error:
            return write_answer(key, RewardAnswer(None, str(error), time.perf_counter() - began, cold))
        return write_answer(key, RewardAnswer(result, "", time.perf_counter() - began, cold))
