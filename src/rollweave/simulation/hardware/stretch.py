"""A stretch of engine steps between two changes of the batch, in closed form.

Step j (from 0) of a batch of b requests whose caches hold S tokens at the beginning takes

    fixed + per_token * (S + j*b)      and, for the first `steps_more` of them, `more / steps_more` on top

The extra is context that is computed beside the decoding (chunked prefill).
"""

from __future__ import annotations

from math import floor, sqrt


class Stretch:
    __slots__ = (
        *("batch", "cached", "extra", "fixed", "more", "pairs_more", "per_token"),
        *("steps_more", "tokens_more"),
    )

    def __init__(self) -> None:
        self.batch = 0
        self.cached = 0
        """Tokens in the caches of the batch now."""
        self.fixed = 0.0
        self.per_token = 0.0
        self.more = 0.0
        """Seconds of context still to be computed ..."""
        self.steps_more = 0
        """... over so many steps ..."""
        self.tokens_more = 0.0
        """... of so many tokens: whoever joins before they are computed shares their steps."""
        self.pairs_more = 0.0
        self.extra = 0.0
        """Seconds of `more` for other things than new context: caches rebuilt under new weights, waking up."""

    def seconds(self, steps: int) -> float:
        """How long so many steps take from now on."""
        plain = steps * self.fixed + self.per_token * (steps * self.cached + self.batch * steps * (steps - 1) / 2)
        if not self.steps_more:
            return plain
        return plain + (self.more if steps >= self.steps_more else self.more * steps / self.steps_more)

    def steps(self, seconds: float) -> int:
        """How many whole steps fit into so many seconds."""
        if self.steps_more:
            with_more = self.seconds(self.steps_more)
            if seconds < with_more:
                done = self._inverse(seconds, self.fixed + self.more / self.steps_more)
                return min(done, self.steps_more)
            done = self._inverse(seconds - self.more, self.fixed)
            return max(done, self.steps_more)
        return self._inverse(seconds, self.fixed)

    def advance(self, steps: int) -> None:
        self.cached += steps * self.batch
        if self.steps_more:
            left = max(0, self.steps_more - steps)
            share = left / self.steps_more
            self.steps_more = left
            self.more *= share
            self.tokens_more *= share
            self.pairs_more *= share
            self.extra *= share

    def forget_more(self) -> None:
        self.more = self.tokens_more = self.pairs_more = self.extra = 0.0
        self.steps_more = 0

    def _inverse(self, seconds: float, fixed: float) -> int:
        """The root of `seconds(k) = seconds`, rounded down; a billionth of a step is forgiven."""
        half = self.per_token * self.batch / 2
        linear = fixed + self.per_token * self.cached - half
        if half <= 0.0:
            return floor(seconds / linear + 1e-9) if linear > 0 else 0
        # The form without cancellation: seconds / linear for a half that is next to nothing.
        return floor(2 * seconds / (linear + sqrt(linear * linear + 4 * half * seconds)) + 1e-9)
