"""StepTime: divides the time of engine steps between contexts and answers.

One forward pass computes pieces of contexts and single tokens of answers together, so their times cannot be measured
apart. A line through the steps of late can tell them apart, because steps differ in how much of each they have:

    seconds = fixed + context * (context tokens) + answer * (answers)

A context token then counts `context`; what is left of the step is the answers'.
"""

from __future__ import annotations

import numpy as np

KEPT = 0.99
"""Share of what is known that is kept from one step to the next: a mean over about a hundred steps."""

DOUBT = 1e-3
"""As a share of the sums: decides where steps do not differ."""


class StepTime:
    def __init__(self) -> None:
        self._products = np.zeros((3, 3))
        self._times = np.zeros(3)

    def contexts(self, seconds: float, context_tokens: int, answers: int) -> float:
        """The part of a step of so many seconds that went into its context tokens."""
        step = np.array([1.0, context_tokens, answers])
        self._products = KEPT * self._products + np.outer(step, step)
        self._times = KEPT * self._times + seconds * step
        if not context_tokens:
            return 0.0
        if not answers:
            return seconds
        return min(self._seconds_per_token() * context_tokens, seconds * context_tokens / (context_tokens + 1))

    def _seconds_per_token(self) -> float:
        """Drawn towards a step whose time is spread evenly over all tokens, where the data do not say otherwise."""
        count, tokens, answers = self._products[0]
        even = self._times[0] / max(1.0, tokens + answers)
        doubt = DOUBT * np.diag([count, self._products[1, 1], self._products[2, 2]])
        found = np.linalg.solve(self._products + doubt, self._times + doubt @ np.array([0.0, even, even]))
        return max(0.0, float(found[1]))
