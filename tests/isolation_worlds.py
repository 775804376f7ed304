"""The worlds of test_environments_isolation.py: they run in its child processes, so they import little.

`Counter` takes its orders from the actions it is given; when it is about to hang it writes to a FIFO, so that
the test knows it really does.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any


class Counter:
    """Adds up what it is told. Same seed and actions, same observations."""

    deterministic = True

    def reset(self, seed: int) -> str:
        self.total = seed
        return f"{self.total}"

    def step(self, action: str) -> Any:
        order, _, value = action.partition(" ")
        match order:
            case "hang":
                Path(value).write_text("hanging")
                while True:
                    signal.pause()
            case "exit":
                os._exit(int(value))
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "raise":
                raise ValueError(value)
        print(end="printing must not disturb the conversation ", flush=True)
        self.total += int(order)
        return f"{self.total}", float(self.total), self.total > 99, {"pid": os.getpid(), "object": object()}

    def scripted_action(self, rng: random.Random) -> str:
        return str(rng.randrange(50))


class Forgetful(Counter):
    """Cannot be replayed, and says so."""

    deterministic = False


class Liar(Counter):
    """Says it can be replayed, but every process remembers another number."""

    def reset(self, seed: int) -> str:
        return f"{os.getpid()}"


class Slow(Counter):
    """An async environment: waits until a sibling in the same process has spoken."""

    first: asyncio.Event | None = None

    async def step(self, action: str) -> Any:
        if Slow.first is None:
            Slow.first = asyncio.Event()
            await Slow.first.wait()
        Slow.first.set()
        return super().step(action)


class HangsForOne:
    """Three steps for every seed but one, whose first never ends."""

    unlucky = 13

    def reset(self, seed: int) -> str:
        self.seed, self.steps = seed, 0
        return "begin"

    def step(self, action: str) -> Any:
        while self.seed == self.unlucky:
            signal.pause()
        self.steps += 1
        return "more", 1.0, self.steps == 3
