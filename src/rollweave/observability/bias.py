"""Duration bias: measures whether the trained episodes are as long as the started ones.

A rule that gives up on slow episodes trains on fast ones, and no other metric shows it. Comparing plain means does not
show it either: episodes that still run are missing among the trained ones, and those are the long ones. So both means
are estimated from all members of all groups, also unfinished ones, as in the study of survival times (Kaplan and
Meier): an episode that still runs, or that was stopped, counts as *at least this long*.

    started   every member, with its longest episode if it was played several times
    kept      members that were trained or may still be trained, with the episode that is or would be trained; under a
              filter, a member that is not decided yet counts by the share that passes the filter

    bias = mean(kept) / mean(started) - 1

If no episode is stopped, both are the same episodes and the bias is exactly 0. It is negative if slow members are
dropped, or are played again until they happen to be fast; a member that takes as long in its second attempt adds no
bias. After an infrastructure failure the next attempt counts. Durations beyond the longest episode that ended by itself
are not guessed: the means stop there. So a rule that never lets a long episode finish is reported with less than its
true bias, never with more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

WINDOW = 2048
"""The number of members that count, the last started ones, because episode lengths change as a policy learns."""

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
    """Whether it was discarded because of its age or as surplus, which causes a bias."""

    def seconds(self, now: float) -> Lifetime:
        return (now if self.ended is None else self.ended) - self.began, self.natural

    def sampled(self) -> Lifetime:
        """The number of its tokens, which is known only after the attempt was reported."""
        assert self.tokens is not None
        return float(self.tokens), self.natural


class DurationBias:
    """Follows all attempts and computes the bias. It is fed by the accounting of events."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._members: OrderedDict[str, dict[str, _Attempt]] = OrderedDict()
        """The attempts of each member, by id, the latest last."""

    def begin(self, attempt: str, time: float) -> None:
        """An attempt starts; its id is `<group>.<member>.<attempt>`."""
        self._members.setdefault(_member(attempt), {})[attempt] = _Attempt(time)
        if len(self._members) > self._window:
            self._members.popitem(last=False)

    def end(self, attempt: str, time: float, tokens: int, natural: bool, failed: bool = False) -> None:
        """The episode is over. It ended by itself (`natural`), by a failure (`failed`), or was stopped."""
        if one := self._find(attempt):
            one.ended, one.tokens, one.natural, one.failed = time, tokens, natural, failed

    def train(self, attempt: str) -> None:
        if one := self._find(attempt):
            one.trained = True

    def throw_away(self, attempt: str, filtered: bool = False) -> None:
        """The attempt will not be trained. Its member may still be trained, if it is played again."""
        if one := self._find(attempt):
            one.filtered = filtered
            one.thrown_away = not one.failed and not filtered

    def sample(self, now: float) -> dict[str, float]:
        """`bias/duration` and `bias/tokens` as shares: -0.2 is a fifth too short. Empty until an episode has ended."""
        seconds, tokens = _Means(), _Means()
        passing = self._passing()
        for member in self._members.values():
            attempts = list(member.values())
            latest = attempts[-1]
            chance = 0.0 if latest.thrown_away or latest.filtered else 1.0 if latest.trained else passing
            seconds.add([one.seconds(now) for one in _lengths(attempts)], latest.seconds(now), chance)
            if latest.tokens is not None:
                # An earlier attempt may be reported later: a requeue starts the next one when it cancels the last.
                reported = [one for one in attempts if one.tokens is not None]
                tokens.add([one.sampled() for one in _lengths(reported)], latest.sampled(), chance)
        found = {"bias/duration": seconds.bias(), "bias/tokens": tokens.bias()}
        return {key: value for key, value in found.items() if value is not None}

    def _passing(self) -> float:
        """The share of decided members that the filter let pass."""
        latest = [next(reversed(member.values())) for member in self._members.values()]
        trained, filtered = sum(one.trained for one in latest), sum(one.filtered for one in latest)
        return trained / (trained + filtered) if filtered else 1.0

    def _find(self, attempt: str) -> _Attempt | None:
        return self._members.get(_member(attempt), {}).get(attempt)


def _lengths(attempts: list[_Attempt]) -> list[_Attempt]:
    """The attempts that show how long the member takes: failed ones count only if there are no others."""
    return [one for one in attempts if not one.failed] or attempts


def _member(attempt: str) -> str:
    return attempt.rpartition(".")[0]


@dataclass(slots=True)
class _Means:
    started: list[Lifetime] = field(default_factory=list)
    kept: list[Lifetime] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    """The weight of each kept member."""

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
    """The mean of min(size, horizon), where some sizes are lower limits: the area under the Kaplan-Meier curve."""
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
