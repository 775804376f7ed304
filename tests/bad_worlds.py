"""A user's file with everything that can be wrong in it. Tests copy it next to a job file, so that each has its own."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

steps_taken = itertools.count(1)


class Fine:
    """Two turns, and a reward that differs between episodes."""

    def reset(self, seed: int) -> Any:
        self.turn = 0
        return "go"

    def step(self, action: str) -> Any:
        self.turn += 1
        return "on", float(len(action) % 2), self.turn == 2


class RaisesInReset(Fine):
    def reset(self, seed: int) -> Any:
        raise FileNotFoundError("levels.json is missing")


class RaisesInStep(Fine):
    def step(self, action: str) -> Any:
        return {}["wall"]


class RewardsNaN(Fine):
    def step(self, action: str) -> Any:
        return "on", float("nan"), False


class ObservesNaN(Fine):
    def reset(self, seed: int) -> Any:
        return float("nan")


class ObservesNoText(Fine):
    def reset(self, seed: int) -> Any:
        return "\ud800"


class NeedsArguments(Fine):
    def __init__(self, key: str) -> None:
        self.key = key


class NeverEnds(Fine):
    def step(self, action: str) -> Any:
        return "on", 0.5, False


class HangsAlways(Fine):
    async def step(self, action: str) -> Any:
        await asyncio.Event().wait()


class FailsEveryFifthStep(Fine):
    def step(self, action: str) -> Any:
        if next(steps_taken) % 5 == 0:
            raise ConnectionError("the server went away")
        return super().step(action)


class HangsOnce(Fine):
    """The first to take a step hangs in it, in a way that only the end of the process ends."""

    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    def step(self, action: str) -> Any:
        if not self.marker.exists():
            self.marker.touch()
            time.sleep(3600)
        return super().step(action)


class AwaitsForeverOnce(Fine):
    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    async def step(self, action: str) -> Any:
        if not self.marker.exists():
            self.marker.touch()
            await asyncio.Event().wait()
        return super().step(action)


class FillsTheDisk(Fine):
    """From the second train step on no file may grow beyond 15 kB: too little for a model."""

    def step(self, action: str) -> Any:
        if next(steps_taken) == 10:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, hard))
        return super().step(action)


class LosesTheCheckpoints(Fine):
    """Puts a file where the run wants a folder."""

    def __init__(self, checkpoints: str) -> None:
        self.checkpoints = Path(checkpoints)

    def step(self, action: str) -> Any:
        if self.checkpoints.is_dir():
            self.checkpoints.rmdir()
            self.checkpoints.touch()
        return super().step(action)


class PressesCtrlC(Fine):
    """Once: a second Ctrl-C would end the process where it stands."""

    pressed = False

    def step(self, action: str) -> Any:
        if not PressesCtrlC.pressed:
            PressesCtrlC.pressed = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


class KillsItsProcess(Fine):
    def step(self, action: str) -> Any:
        print("farewell", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def raises(trajectory: Any) -> Any:
    raise ZeroDivisionError("nothing to divide by")


def returns_nan(trajectory: Any) -> Any:
    return float("nan")


def returns_nothing(trajectory: Any) -> Any:
    return None
