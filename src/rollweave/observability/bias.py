"""Duration bias: are the episodes that are trained as long as those that were started?

A rule that gives up on slow episodes trains on fast ones, and nothing else in the metrics shows it. Naively comparing
means does not either: whatever is still running is missing from the trained ones, and it is the long ones that still
run. So both means are estimated from all members of all groups, unfinished ones included, as in the study of survival
times (Kaplan and Meier): an episode that is still running, or that was cut short, counts as *at least this long*.

    started   every member: its episode, the longest if it was played several times
    kept      members that were trained or still may be: the episode that is or would be trained

    bias = mean(kept) / mean(started) - 1

Where nothing is cut short these are the same episodes and the bias is exactly 0. It is negative where slow members are
dropped, and where they are played again until they happen to be fast; a member that is played again and takes as long
as the first time is no bias. An infrastructure failure is no length: the attempt after it counts. Durations beyond the
longest that ended by itself are not guessed: the means stop there, so a policy that never lets a long episode finish is
reported with less than its true bias, never with more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

WINDOW = 2048
"""Members looked at, the latest started: episodes change in length as a policy learns."""

Observation = tuple[float, bool]
"""A size, and whether it is final (the episode ended by itself) or only a lower limit."""


@dataclass(slots=True)
class _Attempt:
    began: float
    ended: float | None = None
    natural: bool = False
    tokens: int | None = None
    failed: bool = False
    thrown_away: bool = False

    def seconds(self, now: float) -> Observation:
        return (now if self.ended is None else self.ended) - self.began, self.natural


@dataclass(slots=True)
class _Member:
    attempts: dict[str, _Attempt] = field(default_factory=dict)

    @property
    def latest(self) -> _Attempt:
        return next(reversed(self.attempts.values()))

    @property
    def lengths(self) -> list[_Attempt]:
        """The attempts that say something about how long it takes."""
        return [one for one in self.attempts.values() if not one.failed] or list(self.attempts.values())


class DurationBias:
    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._members: dict[str, _Member] = {}

    def begin(self, attempt: str, time: float) -> None:
        """`attempt`: `<group>.<member>.<attempt>`."""
        self._members.setdefault(_member(attempt), _Member()).attempts[attempt] = _Attempt(time)
        if len(self._members) > self._window:
            del self._members[next(iter(self._members))]

    def end(self, attempt: str, time: float, tokens: int, natural: bool, failed: bool = False) -> None:
        """The episode is over: it ended by itself (`natural`), by a failure, or because we stopped it."""
        if one := self._find(attempt):
            one.ended, one.tokens, one.natural, one.failed = time, tokens, natural, failed

    def throw_away(self, attempt: str) -> None:
        """It will not be trained. Its member still may, if it is played again."""
        if one := self._find(attempt):
            one.thrown_away = not one.failed

    def sample(self, now: float) -> dict[str, float]:
        """`bias/duration` and `bias/tokens`, as shares: -0.2 is a fifth too short. Nothing until an episode ended."""
        seconds, tokens = _Means(), _Means()
        for member in self._members.values():
            latest = member.latest
            known = [one.seconds(now) for one in member.lengths]
            seconds.add(known, latest.seconds(now), latest.thrown_away)
            # How much a running episode has sampled so far only its host knows.
            if latest.tokens is not None:
                counts = [(float(one.tokens), one.natural) for one in member.lengths if one.tokens is not None]
                tokens.add(counts, (float(latest.tokens), latest.natural), latest.thrown_away)
        found = {"bias/duration": seconds.bias(), "bias/tokens": tokens.bias()}
        return {key: value for key, value in found.items() if value is not None}

    def _find(self, attempt: str) -> _Attempt | None:
        member = self._members.get(_member(attempt))
        return member.attempts.get(attempt) if member else None


def _member(attempt: str) -> str:
    return attempt.rpartition(".")[0]


@dataclass(slots=True)
class _Means:
    started: list[Observation] = field(default_factory=list)
    kept: list[Observation] = field(default_factory=list)

    def add(self, lengths: list[Observation], latest: Observation, thrown_away: bool) -> None:
        self.started.append(max(lengths))
        if not thrown_away:
            self.kept.append(latest)

    def bias(self) -> float | None:
        horizon = max((size for size, final in [*self.started, *self.kept] if final), default=0.0)
        if horizon == 0.0 or not any(final for _, final in self.kept):
            return None
        if self.kept == self.started:
            return 0.0
        return survival_mean(self.kept, horizon) / survival_mean(self.started, horizon) - 1.0


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
