"""A task of short questions and long answers: chain sums of reasoning-gym, with every step written down."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import reasoning_gym

TERMS = 12


@cache
def chain_sums() -> Any:
    """The data set: each index is a question of its own."""
    settings = {"min_terms": TERMS, "max_terms": TERMS, "min_digits": 1, "max_digits": 1}
    return reasoning_gym.create_dataset("chain_sum", seed=0, size=2**31, **settings)


class Sums:
    """Half of the reward is the share of steps that are right, up to the first wrong one, and half reasoning-gym's own
    score of the last result."""

    def reset(self, seed: int) -> str:
        self.entry = chain_sums()[seed % len(chain_sums())]
        expression = self.entry["metadata"]["expression"]
        self.terms = [sign + number for sign, number in re.findall(r"([+-]?)\s*(\d+)", expression)]
        return "".join(self.terms)

    def step(self, action: str) -> tuple[str, float, bool]:
        right, given = 0, action.split()
        for step, wanted in zip(given, self._steps(), strict=False):
            if step != wanted:
                break
            right += 1
        result = given[-1].rpartition("=")[2] if given else None
        score = chain_sums().score_answer(answer=result, entry=self.entry)
        return "", 0.5 * right / TERMS + 0.5 * score, True

    def scripted_action(self, rng: random.Random) -> str:
        return " ".join(self._steps())

    def _steps(self) -> list[str]:
        total, steps = 0, []
        for term in self.terms:
            after = total + int(term)
            steps.append(f"{total}{term if term[0] in '+-' else '+' + term}={after}")
            total = after
        return steps
