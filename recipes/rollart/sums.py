"""A task of short questions and long answers: add some numbers, and write down every step."""

from __future__ import annotations

import random

LENGTH = 16
"""Numbers to add."""


class Sums:
    """The reward is the share of the answer's steps that are right, up to the first wrong one."""

    def reset(self, seed: int) -> str:
        draw = random.Random(seed)
        self.numbers = [draw.randrange(10) for _ in range(LENGTH)]
        return "".join(map(str, self.numbers))

    def step(self, action: str) -> tuple[str, float, bool]:
        right = 0
        for given, wanted in zip(action.split(), self._steps(), strict=False):
            if given != wanted:
                break
            right += 1
        return "", right / LENGTH, True

    def scripted_action(self, rng: random.Random) -> str:
        return " ".join(self._steps())

    def _steps(self) -> list[str]:
        total, steps = 0, []
        for number in self.numbers:
            steps.append(f"{total}+{number}={total + number}")
            total += number
        return steps
