"""The math reward: is an answer equal to the expected one? `math-verify` knows; a process of its own asks it.

An expression that a model wrote can make a computer algebra system compute for ever, fill the memory or fall over. So
it is compared in a child process (`math_worker.py`), which is killed when its time is over and replaced by a new one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from rollweave.config.ready_rewards import MathRewardConfig
from rollweave.errors import ConfigError, RewardFailed
from rollweave.rewards.code.sandbox import readable
from rollweave.rewards.rules import expected, last_answer
from rollweave.trajectory import Trajectory

WORKER = Path(__file__).with_name("math_worker.py")
START_SECONDS = 120.0
MOST_CHARACTERS = 100_000
"""Of an answer: the expression that counts is at its end."""


class MathReward:
    """A plain function of a trajectory, which may be called from several threads at once."""

    def __init__(self, config: MathRewardConfig) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("rewards: math: math-verify is not installed: pip install 'rollweave[math]'")
        self._config = config
        self._seats = threading.BoundedSemaphore(config.parallel or len(os.sched_getaffinity(0)))
        self._idle: list[_Comparer] = []

    def __call__(self, trajectory: Trajectory) -> float:
        wanted = str(expected(trajectory, self._config.column))
        with self._seats:
            try:
                comparer = self._idle.pop()
            except IndexError:
                comparer = _Comparer(self._config)
            try:
                score = comparer.compare(wanted, last_answer(trajectory)[-MOST_CHARACTERS:])
            except _NoAnswer as error:
                comparer.end()
                if not error.understood:
                    raise RewardFailed(
                        f"{trajectory.task.id}: column {self._config.column!r} holds {wanted!r:.100}, and math-verify "
                        f"cannot read that ({error}): write LaTeX or a plain expression"
                    ) from error
                return 0.0
            except BaseException:
                comparer.end()
                raise
            self._idle.append(comparer)
            return score


class _NoAnswer(Exception):
    def __init__(self, problem: str, understood: bool) -> None:
        """`understood`: the expected answer was read; so it is the model's that was too much."""
        super().__init__(problem)
        self.understood = understood


class _Comparer:
    """One child process."""

    def __init__(self, config: MathRewardConfig) -> None:
        self._seconds = config.timeout
        self._unread = b""
        command = [sys.executable, "-P", str(WORKER), str(config.memory_mb), str(config.timeout)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            bufsize=0,
        )
        try:
            self._hear(START_SECONDS)
        except _NoAnswer as error:
            self.end()
            raise RewardFailed(f"the process that compares mathematics does not start: {error}") from error

    def compare(self, wanted: str, given: str) -> float:
        question = json.dumps({"wanted": wanted, "given": given}).encode() + b"\n"
        understood = False
        try:
            _pipe(self._process.stdin).write(question)
            understood = bool(self._hear(self._seconds)["understood"])
            if understood:
                return float(self._hear(self._seconds)["score"])
        except (_NoAnswer, OSError) as error:
            raise _NoAnswer(str(error), understood) from error
        raise _NoAnswer("it found no expression", understood=False)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            _pipe(pipe).close()

    def _hear(self, seconds: float) -> Any:
        """The next line that the process says."""
        stdout = _pipe(self._process.stdout)
        while b"\n" not in self._unread:
            ready = readable(stdout.fileno(), seconds)
            data = os.read(stdout.fileno(), 65536) if ready else b""
            if not data:
                raise _NoAnswer("it ended" if ready else f"no answer within {seconds:g} s", understood=False)
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
