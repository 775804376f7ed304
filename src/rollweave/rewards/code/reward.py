"""The code reward: takes the program out of the last answer, runs it against the tests of its row, and scores it.

A program that is wrong, fails, or is too slow scores 0. A sandbox that fails is no score at all: it raises.
"""

from __future__ import annotations

import os
import threading
import time

from rollweave.config.ready_rewards import CodeRewardConfig
from rollweave.errors import ConfigError
from rollweave.rewards.code.cases import AssertCase, OutputCase, find_program, read_cases
from rollweave.rewards.code.launch import MIB, Launcher, SandboxLimits
from rollweave.rewards.code.timeout import AdaptiveTimeout
from rollweave.rewards.rules import expected, last_answer
from rollweave.rewards.scorer import RewardResult
from rollweave.trajectory import Trajectory


class CodeReward:
    """A plain function of a trajectory, which may be called from several threads at once."""

    def __init__(self, config: CodeRewardConfig) -> None:
        self._config = config
        limits = SandboxLimits(memory=config.memory_mb * MIB, processes=config.processes)
        try:
            self._launcher = Launcher(limits, config.python, config.readable, config.unsafe)
        except ConfigError as error:
            raise ConfigError(f"rewards: code: {error}") from error
        self._timeout = AdaptiveTimeout(config.least_timeout, config.timeout_factor, config.timeout)
        self._seats = threading.BoundedSemaphore(config.parallel or len(os.sched_getaffinity(0)))

    def __call__(self, trajectory: Trajectory) -> RewardResult:
        column = self._config.tests
        cases = read_cases(expected(trajectory, column), f"{trajectory.task.id}: column {column!r}")
        passed = self._passed(find_program(last_answer(trajectory)), cases)
        value = passed / len(cases) if self._config.partial else float(passed == len(cases))
        return RewardResult(value, {"passed": float(passed), "tests": float(len(cases))})

    def _passed(self, program: str, cases: list[OutputCase | AssertCase]) -> int:
        """How many tests the program passes. If all have to pass, the first that does not is the last that is run."""
        passed, left = 0, self._config.total_timeout
        for case in cases:
            with self._seats:
                began = time.monotonic()
                result = case.check(self._launcher, program, min(self._timeout.seconds(case.key), left))
                left -= time.monotonic() - began
            if result.passed:
                self._timeout.passed(case.key, result.seconds)
                passed += 1
            if left <= 0 or not (result.passed or self._config.partial):
                break
        return passed
