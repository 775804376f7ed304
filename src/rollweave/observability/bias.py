"""Duration bias: are the episodes that were trained as long as those that were started?

A rule that gives up on slow episodes trains on fast ones, and nothing else in the metrics shows it. Naively comparing
means does not either: whatever is still running is missing from the trained ones, and it is the long ones that still
run. So both means are estimated from all attempts, unfinished ones included, as in the study of survival times
(Kaplan and Meier): an attempt that is still running, or that we or a failure cut short, counts as *at least this
long*. Compared are

    kept      attempts that were trained or still may be
    started   all attempts, also those that were thrown away

    bias = mean(kept) / mean(started) - 1

Where nothing is thrown away the two are the same attempts and the bias is exactly 0. Where slow ones are dropped it is
negative. Durations beyond the longest that ended by itself are not guessed: the means stop there, so a policy that
never lets a long episode finish is reported with less than its true bias, never with more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WINDOW = 2048
"""Attempts looked at, the latest started: episodes change in length as a policy learns."""

Observation = tuple[float, bool]
"""A size, and whether it is final (the episode ended by itself) or only a lower limit."""


@dataclass(slots=True)
class _Attempt:
    began: float
    ended: float | None = None
    natural: bool = False
    tokens: int | None = None
    thrown_away: bool = False

    def seconds(self, now: float) -> Observation:
        return (now if self.ended is None else self.ended) - self.began, self.natural


class DurationBias:
    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._attempts: dict[str, _Attempt] = {}

    def begin(self, attempt: str, time: float) -> None:
        self._attempts[attempt] = _Attempt(time)
        if len(self._attempts) > self._window:
            del self._attempts[next(iter(self._attempts))]

    def end(self, attempt: str, time: float, tokens: int, natural: bool) -> None:
        """The episode is over; `natural`: it ended by itself and was not cut short."""
        if one := self._attempts.get(attempt):
            one.ended, one.tokens, one.natural = time, tokens, natural

    def throw_away(self, attempt: str) -> None:
        """It will not be trained."""
        if one := self._attempts.get(attempt):
            one.thrown_away = True

    def sample(self, now: float) -> dict[str, float]:
        """`bias/duration` and `bias/tokens`, as shares: -0.2 is a fifth too short. Nothing until an episode ended."""
        attempts = self._attempts.values()
        seconds = _bias([(one.seconds(now), one.thrown_away) for one in attempts])
        # How much a running episode has sampled so far only its host knows.
        known = [one for one in attempts if one.tokens is not None]
        tokens = _bias([((float(one.tokens or 0), one.natural), one.thrown_away) for one in known])
        found = {"bias/duration": seconds, "bias/tokens": tokens}
        return {key: value for key, value in found.items() if value is not None}


def _bias(attempts: list[tuple[Observation, bool]]) -> float | None:
    horizon = max((size for (size, natural), _ in attempts if natural), default=0.0)
    kept = [size for size, thrown_away in attempts if not thrown_away]
    if horizon == 0.0 or not any(natural for _, natural in kept):
        return None
    return survival_mean(kept, horizon) / survival_mean((size for size, _ in attempts), horizon) - 1.0


def survival_mean(observations: Iterable[Observation], horizon: float) -> float:
    """Mean of min(size, horizon), lower limits taken as such: the area under the Kaplan-Meier curve."""
    line = sorted(observations, key=lambda one: (one[0], not one[1]))
    surviving, area, reached = 1.0, 0.0, 0.0
    for place, (size, final) in enumerate(line):
        here = min(size, horizon)
        area += surviving * (here - reached)
        reached = here
        if final:
            surviving *= 1.0 - 1.0 / (len(line) - place)
    return area + surviving * (horizon - reached)
