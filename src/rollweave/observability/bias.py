"""Duration bias: are the episodes that are trained as long as those that were started?

A rule that gives up on slow episodes trains on fast ones, and nothing else in the metrics shows it. Naively comparing
means does not either: whatever is still running is missing from the trained ones, and it is the long ones that still
run. So both means are estimated from all members of all groups, unfinished ones included, as in the study of survival
times (Kaplan and Meier): an episode that is still running, or that was cut short, counts as *at least this long*.

    started   every member: its episode, the longest if it was played several times
    kept      members that were trained or still may be: the episode that is or would be trained; with a filter, each
              that is not decided yet counts by the share that passes it

    bias = mean(kept) / mean(started) - 1

Where nothing is cut short these are the same episodes and the bias is exactly 0. It is negative where slow members are
dropped, and where they are played again until they happen to be fast; a member that is played again and takes as long
as the first time is no bias. An infrastructure failure is no length: the attempt after it counts. Durations beyond the
longest that ended by itself are not guessed: the means stop there, so a policy that never lets a long episode finish is
reported with less than its true bias, never with more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

WINDOW = 2048
"""Members looked at, the latest started: episodes change in length as a policy learns."""

Lifetime = tuple[float, bool]
"""A size, and whether it is final (the episode ended by itself) or only a lower limit."""


@dataclass(slots=True)
class _Attempt:
    began: float
    ended: float | None = None
    natural: bool = False
    tokens: int | None = None
    failed: bool = False
    trained: bool = False
    filtered: bool = False
    thrown_away: bool = False
    """For its age or as surplus, which is where a bias comes from."""

    def seconds(self, now: float) -> Lifetime:
        return (now if self.ended is None else self.ended) - self.began, self.natural

    def sampled(self) -> Lifetime:
        """Its tokens. Only of an attempt that was reported."""
        assert self.tokens is not None
        return float(self.tokens), self.natural


@dataclass(slots=True)
class _Member:
    attempts: dict[str, _Attempt] = field(default_factory=dict)

    @property
    def latest(self) -> _Attempt:
        return next(reversed(self.attempts.values()))

    @property
    def reported(self) -> list[_Attempt]:
        """The attempts whose tokens are known: only a report tells how much an episode has sampled."""
        return [one for one in self.attempts.values() if one.tokens is not None]


class DurationBias:
    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._members: OrderedDict[str, _Member] = OrderedDict()

    def begin(self, attempt: str, time: float) -> None:
        """`attempt`: `<group>.<member>.<attempt>`."""
        self._members.setdefault(_member(attempt), _Member()).attempts[attempt] = _Attempt(time)
        if len(self._members) > self._window:
            self._members.popitem(last=False)

    def end(self, attempt: str, time: float, tokens: int, natural: bool, failed: bool = False) -> None:
        """The episode is over: it ended by itself (`natural`), by a failure, or because we stopped it."""
        if one := self._find(attempt):
            one.ended, one.tokens, one.natural, one.failed = time, tokens, natural, failed

    def train(self, attempt: str) -> None:
        if one := self._find(attempt):
            one.trained = True

    def throw_away(self, attempt: str, filtered: bool = False) -> None:
        """It will not be trained. Its member still may, if it is played again."""
        if one := self._find(attempt):
            one.filtered = filtered
            one.thrown_away = not one.failed and not filtered

    def sample(self, now: float) -> dict[str, float]:
        """`bias/duration` and `bias/tokens`, as shares: -0.2 is a fifth too short. Nothing until an episode ended."""
        seconds, tokens = _Means(), _Means()
        passing = self._passing()
        for member in self._members.values():
            latest = member.latest
            chance = 0.0 if latest.thrown_away or latest.filtered else 1.0 if latest.trained else passing
            known = [one.seconds(now) for one in _lengths(list(member.attempts.values()))]
            seconds.add(known, latest.seconds(now), chance)
            if latest.tokens is not None:
                # An earlier attempt may report later: a requeue starts the next one as soon as it cancels the last.
                counts = [one.sampled() for one in _lengths(member.reported)]
                tokens.add(counts, latest.sampled(), chance)
        found = {"bias/duration": seconds.bias(), "bias/tokens": tokens.bias()}
        return {key: value for key, value in found.items() if value is not None}

    def _passing(self) -> float:
        """The share of decided members that the filter let pass."""
        latest = [member.latest for member in self._members.values()]
        trained, filtered = sum(one.trained for one in latest), sum(one.filtered for one in latest)
        return trained / (trained + filtered) if filtered else 1.0

    def _find(self, attempt: str) -> _Attempt | None:
        member = self._members.get(_member(attempt))
        return member.attempts.get(attempt) if member else None


def _lengths(attempts: list[_Attempt]) -> list[_Attempt]:
    """Those that say something about how long the member takes: the failed ones only if there are no others."""
    return [one for one in attempts if not one.failed] or attempts


def _member(attempt: str) -> str:
    return attempt.rpartition(".")[0]


@dataclass(slots=True)
class _Means:
    started: list[Lifetime] = field(default_factory=list)
    kept: list[Lifetime] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    """How much of each kept one counts."""

    def add(self, lengths: list[Lifetime], latest: Lifetime, chance: float) -> None:
        self.started.append(max(lengths))
        if chance > 0:
            self.kept.append(latest)
            self.chances.append(chance)

    def bias(self) -> float | None:
        horizon = max((size for size, final in [*self.started, *self.kept] if final), default=0.0)
        if horizon == 0.0 or not any(final for _, final in self.kept):
            return None
        if self.kept == self.started:
            return 0.0
        return survival_mean(self.kept, horizon, self.chances) / survival_mean(self.started, horizon) - 1.0


def survival_mean(observations: Sequence[Lifetime], horizon: float, weights: Sequence[float] | None = None) -> float:
    """Mean of min(size, horizon), lower limits taken as such: the area under the Kaplan-Meier curve."""
    together = zip(observations, weights or [1.0] * len(observations), strict=True)
    line = sorted(together, key=lambda one: (one[0][0], not one[0][1]))
    at_risk = sum(weight for _, weight in line)
    surviving, area, reached = 1.0, 0.0, 0.0
    for (size, final), weight in line:
        here = min(size, horizon)
        area += surviving * (here - reached)
        reached = here
        if final:
            surviving *= max(0.0, 1.0 - weight / at_risk)
        at_risk -= weight
    return area + surviving * (horizon - reached)
