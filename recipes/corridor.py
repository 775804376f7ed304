"""The environment of own_environment.yaml: a class with `reset` and `step` is all it takes."""

from __future__ import annotations

import random

DOORS = "abc"


class Corridor:
    """Four rooms with three doors each; the light tells which one is open. A wrong door ends the walk."""

    deterministic = True  # the same seed and actions give the same episode

    def reset(self, seed: int) -> str:
        draw = random.Random(seed)
        self.ways = [draw.choice(DOORS) for _ in range(4)]
        self.room = 0
        return self._see()

    def step(self, action: str) -> tuple[str, float, bool]:
        if action.strip() != self.ways[self.room]:
            return "Locked in.", 0.0, True
        self.room += 1
        if self.room == len(self.ways):
            return "Out!", 0.25, True
        return self._see(), 0.25, False

    def scripted_action(self, rng: random.Random) -> str:
        """A random legal action, for the warm start of a policy made from nothing."""
        return rng.choice(DOORS)

    def _see(self) -> str:
        return f"light over {self.ways[self.room]}"
