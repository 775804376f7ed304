"""The environment of own_environment.yaml: a class with `reset` and `step` is all it takes."""

from __future__ import annotations

import random


class Guess:
    """Think of a digit; four guesses find any of them, if one listens."""

    deterministic = True

    def reset(self, seed: int) -> str:
        self.digit = seed % 10
        self.left = 4
        return "Guess a digit."

    def step(self, action: str) -> tuple[str, float, bool]:
        self.left -= 1
        guess = action.strip()
        if guess == str(self.digit):
            return "Right.", 1.0, True
        if self.left == 0:
            return "Too late.", 0.0, True
        if len(guess) != 1 or not guess.isdigit():
            return "A digit, please.", 0.0, False
        return ("higher" if int(guess) < self.digit else "lower"), 0.0, False

    def scripted_action(self, rng: random.Random) -> str:
        """A random legal action, for the warm start."""
        return str(rng.randrange(10))
