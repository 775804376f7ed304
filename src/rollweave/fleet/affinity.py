"""Affinity: which pool suits which task, learned while the run goes on. Pure: no clock, no randomness, no messages.

    ended trajectories ─▶ TaskProfile   what a trajectory needs: context tokens, sampled tokens, turns, environment time
    engine counters    ─▶ PoolSpeed     what the engines of a pool take for them
    both               ─▶ Figures       a small snapshot, made once a step; `fleet/router.py` compares pools with it

The time that a trajectory is expected to need on an engine:

    b, c     of what the engine holds, b answers are sampled at once, and c contexts are computed or wait for it
    own      (1 + c) * (context tokens * prefill + (sampled tokens + turns / 2) * (step + request * (b + 1)))
    delay    (b + c) * context tokens * prefill + b * sampled tokens * request        what the others lose by it

b and c follow from the profiles of what the engine holds: the share of its life that a trajectory spends with each, and
in its environment. These shares depend on b and c in turn, so they are found by a few rounds (`Figures.load`).

The pool with the smallest own + delay gets it. The number of trajectories under way is limited, so the shorter all of
them take together, the more of them end; a choice that looked at `own` alone would gain a little for one trajectory and
lose more for its neighbours.

Everything is forgotten by and by, so changed lengths and speeds show within a few steps. Nothing here is needed for
correctness: a run that is resumed begins to learn anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

from rollweave.engines.protocol import EngineStats

REMEMBERED = 64
"""Trajectories of a task over which its profile is a mean, the latest counting most."""

KEPT = 0.7
"""Share of a pool's evidence that is kept from one step to the next: half of it after two steps, 3 % after ten."""

USUAL_SLOPE = 0.5
"""Where the data do not say by how much a request lengthens the steps: half of a usual step is proportional to the
number of requests. Both a GPU, below that, and a CPU, above it, are soon recognised."""

SPREAD = 0.2
"""How much the number of requests has to vary, as a share of it, for the data to count as much as `USUAL_SLOPE`."""

ROUNDS = 4
"""Enough for the load of an engine to be known within a few per cent."""

UNTRIED_STEPS = 8
"""A pool that has done nothing for so many steps gets one trajectory: it may have become faster."""

WRONG_FACTOR, WRONG_COUNT = 3.0, 8
"""So many trajectories of a task on a pool that took so many times as long as expected, or so many times less, compared
with those of other tasks and pools, are a `Surprise`. Time in
which all engines stand still lengthens all of them alike."""


NOTHING = EngineStats()
"""The counters of an engine that has just joined."""


class TaskProfile(NamedTuple):
    """What a trajectory of a task needs, on average."""

    context: float
    """Tokens that it is given, and whose keys and values have to be computed."""
    sampled: float
    turns: float
    waits: float
    """Seconds in its environment."""

    @property
    def decode_share(self) -> float:
        """The share of its tokens that are sampled."""
        return self.sampled / max(1e-9, self.context + self.sampled)


class PoolSpeed(NamedTuple):
    """What an engine of a pool takes, in seconds."""

    prefill: float
    """For a context token."""
    step: float
    """For a step that samples a token for each of its requests; the part that does not depend on their number."""
    request: float
    """The part of a step for each request."""
    usual: float
    """A step as it was of late."""


class Load(NamedTuple):
    """What an engine has to do at once, on average."""

    sampling: float
    """Answers."""
    contexts: float


class Expected(NamedTuple):
    """Seconds that a trajectory is expected to need on an engine."""

    own: float
    delay: float
    """Of those that are there, all together."""

    @property
    def total(self) -> float:
        return self.own + self.delay


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is learned, at one moment. It travels to the hosts with the fleet."""

    tasks: Mapping[str, TaskProfile] = field(default_factory=dict)
    pools: Mapping[str, PoolSpeed] = field(default_factory=dict)
    untried: frozenset[str] = frozenset()
    """Pools of which too little is known, beside others of which more is."""

    def weight(self, task: str, pool: str) -> float:
        """How much of an engine a trajectory takes, compared with others: the share of its life that it is there."""
        if task not in self.tasks or pool not in self.pools:
            return 1.0
        return sum(self.load(pool, {task: 1}))

    def expected(self, task: str, pool: str, held: Mapping[str, int], again: int = 0) -> Expected:
        """On an engine of the pool that holds so many trajectories of each task. `again`: tokens of its context that
        were computed on an engine that it had to leave, which keeps them."""
        profile, speed = self.tasks[task], self.pools[pool]
        sampling, contexts = self.load(pool, held)
        prefill = (profile.context + again) * speed.prefill
        step = speed.step + speed.request * (sampling + 1)
        own = (1 + contexts) * (prefill + (profile.sampled + profile.turns / 2) * step)
        return Expected(own, (sampling + contexts) * prefill + sampling * profile.sampled * speed.request)

    def load(self, pool: str, held: Mapping[str, int]) -> Load:
        """Of an engine of the pool that holds so many trajectories of each task."""
        speed = self.pools[pool]
        parts = [
            (count, each.sampled, each.context * speed.prefill, each.waits)
            for task, count in held.items()
            if count and (each := self.tasks.get(task)) is not None
        ]
        sampling = contexts = 0.0
        step = speed.usual
        for _ in range(ROUNDS):
            slower, sampling, contexts = 1 + contexts, 0.0, 0.0
            for count, tokens, prefill, waits in parts:
                share = count * slower / max(1e-12, slower * (tokens * step + prefill) + waits)
                sampling += share * tokens * step
                contexts += share * prefill
            step = speed.step + speed.request * max(1.0, sampling)
        return Load(sampling, contexts)


# ------------------------------------------------------------------------------------------------------ the learner


@dataclass(slots=True)
class _Evidence:
    """What the engines of a pool have done of late."""

    tokens: float = 0.0
    """Of contexts, computed ..."""
    seconds: float = 0.0
    """... in so many seconds."""
    steps: float = 0.0
    """Sums over steps, for a line through (requests, seconds of a step)."""
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    idle: int = 0
    """Steps of the trainer in which they did nothing."""

    def begin_step(self, active: bool) -> None:
        """Only what is replaced by something new is forgotten."""
        self.idle = 0 if active else self.idle + 1
        if active:
            for name in ("tokens", "seconds", "steps", "x", "y", "xx", "xy"):
                setattr(self, name, getattr(self, name) * KEPT)

    def add(self, now: EngineStats, before: EngineStats) -> None:
        steps = now.steps - before.steps
        if steps <= 0:
            return
        contexts = now.prefill_seconds - before.prefill_seconds
        self.tokens += now.computed_tokens - before.computed_tokens
        self.seconds += contexts
        requests = (now.sampled_tokens - before.sampled_tokens) / steps
        seconds = max(0.0, now.busy_seconds - before.busy_seconds - contexts) / steps
        self.steps += steps
        self.x += steps * requests
        self.y += steps * seconds
        self.xx += steps * requests * requests
        self.xy += steps * requests * seconds

    def speed(self) -> PoolSpeed | None:
        """None: there is too little to go by."""
        if self.tokens < 1 or self.steps < 1 or self.x <= 0 or self.y <= 0:
            return None
        x, y = self.x / self.steps, self.y / self.steps
        variance, together = self.xx / self.steps - x * x, self.xy / self.steps - x * y
        doubt = (SPREAD * x) ** 2
        slope = (together + doubt * USUAL_SLOPE * y / x) / (variance + doubt)
        request = min(max(slope, 0.0), y / x)
        return PoolSpeed(self.seconds / self.tokens, y - request * x, request, y)


class Surprise(NamedTuple):
    """What was expected of the trajectories of a task on a pool, and what happened: sums of seconds."""

    task: str
    pool: str
    trajectories: int = 0
    expected: float = 0.0
    took: float = 0.0

    def with_one(self, expected: float, took: float) -> Surprise:
        return self._replace(
            trajectories=self.trajectories + 1, expected=self.expected + expected, took=self.took + took
        )


class Affinity:
    """Learns from what ended and from what engines count. One per run, in the driver."""

    def __init__(self) -> None:
        self.figures = Figures()
        self._profiles: dict[str, tuple[TaskProfile, int]] = {}
        """With the number of trajectories behind each."""
        self._pools: dict[str, _Evidence] = {}
        self._seen: dict[str, EngineStats] = {}
        """By engine: its counters when they were last added."""
        self._outcomes: dict[tuple[str, str], Surprise] = {}
        """By task and pool, since the last step."""

    def ended(self, task: str, pool: str, needed: TaskProfile, took: float, expected: float | None) -> None:
        """A trajectory has ended by itself. `took`: its seconds on the engine; `expected`: when it was routed."""
        mean, count = self._profiles.get(task, (needed, 0))
        count = min(count + 1, REMEMBERED)
        moved = TaskProfile(*(old + (new - old) / count for old, new in zip(mean, needed, strict=True)))
        self._profiles[task] = moved, count
        if expected is not None:
            before = self._outcomes.get((task, pool), Surprise(task, pool))
            self._outcomes[task, pool] = before.with_one(expected, took)

    def step(self, engines: Mapping[str, tuple[str, EngineStats]]) -> list[Surprise]:
        """Once a step: each engine that lives, with its pool and its counters. Makes the figures anew, and returns what
        they were wrong about."""
        active: Counter[str] = Counter()
        for id, (pool, now) in engines.items():
            active[pool] += now.steps - self._seen.get(id, NOTHING).steps
        self._pools = {pool: self._pools.get(pool, _Evidence()) for pool in active}
        for pool, evidence in self._pools.items():
            evidence.begin_step(bool(active[pool]))
        for id, (pool, now) in engines.items():
            self._pools[pool].add(now, self._seen.get(id, NOTHING))
        self._seen = {id: now for id, (_, now) in engines.items()}
        self.figures = self._figures()
        outcomes = [one for one in self._outcomes.values() if one.trajectories >= WRONG_COUNT]
        self._outcomes = {}
        return _wrong(outcomes)

    def _figures(self) -> Figures:
        known = {pool: speed for pool, evidence in self._pools.items() if (speed := evidence.speed()) is not None}
        idle = {pool for pool, evidence in self._pools.items() if evidence.idle and not evidence.idle % UNTRIED_STEPS}
        untried = idle | (self._pools.keys() - known.keys()) if known else set()
        return Figures({task: profile for task, (profile, _) in self._profiles.items()}, known, frozenset(untried))


def _wrong(outcomes: Sequence[Surprise]) -> list[Surprise]:
    """Those that are off by more than is usual; one alone, by more than nothing."""
    off = [one.took / max(1e-9, one.expected) for one in outcomes]
    usual = median_low(off) if len(off) > 1 else 1.0
    return [
        one
        for one, factor in zip(outcomes, off, strict=True)
        if not usual / WRONG_FACTOR <= factor <= usual * WRONG_FACTOR
    ]
