"""Continuous batching: which requests run or wait, and when the batch changes next. No clock of its own, no asyncio.

Every request that runs gains one token a step. So the batch keeps a count of steps, a heap of the steps at which
requests end, and the time its present stretch of steps began; between two changes everything follows from those.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import NamedTuple

from rollweave.config.control import InFlight
from rollweave.engines.protocol import EngineStats, Sampling
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.hardware.answer import GpuAnswer, Versions


class IdleCache(NamedTuple):
    tokens: int
    version: int
    """The weights it was computed with."""


class IdleCaches:
    """KV caches of trajectories whose environment is at work: kept while there is room, the oldest go first."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        """Off: every turn computes its whole context."""
        self.tokens = 0
        self._by_trajectory: dict[str, IdleCache] = {}

    def put(self, trajectory: str, tokens: int, version: int) -> None:
        if self.enabled:
            if trajectory in self._by_trajectory:
                self.take(trajectory)
            self._by_trajectory[trajectory] = IdleCache(tokens, version)
            self.tokens += tokens

    def take(self, trajectory: str) -> IdleCache | None:
        cache = self._by_trajectory.pop(trajectory, None)
        if cache is not None:
            self.tokens -= cache.tokens
        return cache

    def shrink(self, room: int) -> int:
        """Evict until they fit into this many tokens; returns how many went."""
        evicted = 0
        while self.tokens > max(0, room) and self._by_trajectory:
            self.take(next(iter(self._by_trajectory)))
            evicted += 1
        return evicted


@dataclass(slots=True)
class Stretch:
    """The engine steps between two changes of the batch, in closed form.

    Step j (from 0) of a batch of b requests whose caches hold S tokens at the beginning takes

        fixed + per_token * (S + j*b)      and, for the first `steps_more` of them, `more / steps_more` on top

    The extra is context that is computed beside the decoding (chunked prefill).
    """

    per_token: float
    fixed: float = 0.0
    batch: int = 0
    cached: int = 0
    """Tokens in the caches of the batch now."""
    more: float = 0.0
    """Seconds of context still to be computed ..."""
    steps_more: int = 0
    """... over so many steps ..."""
    tokens_more: float = 0.0
    """... of so many tokens: a request that joins before they are computed shares their steps."""
    pairs_more: float = 0.0
    extra: float = 0.0
    """Seconds of `more` for other things than new context: caches rebuilt under new weights, waking up."""

    def seconds(self, steps: int) -> float:
        """How long so many steps take from now on."""
        plain = steps * self.fixed + self.per_token * (steps * self.cached + self.batch * steps * (steps - 1) / 2)
        if not self.steps_more:
            return plain
        return plain + self.more_in(steps)

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

    def more_in(self, steps: int) -> float:
        """The part of `more` that the next so many steps compute."""
        return self.more if steps >= self.steps_more else self.more * steps / self.steps_more

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


class ContinuousBatch:
    def __init__(self, costs: EngineCosts, in_flight: InFlight, prefix_cache: bool) -> None:
        self.costs = costs
        self.stats = EngineStats()
        """Of what has left; `running` and `waiting` know the rest."""
        self.versions = Versions()
        self.waiting: deque[GpuAnswer] = deque()
        self.running: dict[str, GpuAnswer] = {}
        self.caches = IdleCaches(enabled=prefix_cache)
        self.step = 0
        self.since = 0.0
        """When step `step` was, or will be, over: the stretch counts from there."""
        self._in_flight = in_flight
        self._ends: list[tuple[int, int, GpuAnswer]] = []
        """(last step, ticket, turn), a heap; turns that left meanwhile or came back with another ticket are skipped."""
        self._tickets = 0
        self._stretch = Stretch(costs.per_cached_token)
        self._sampling = Sampling()
        self._transform = self._sampling.transform
        self._watermark = int(costs.constants.kv_watermark * costs.kv_tokens)

    # ------------------------------------------------------------------------------------------------------- time

    def steps_done(self, now: float) -> int:
        if not self.running or now <= self.since:
            return self.step
        return self.step + self._stretch.steps(now - self.since)

    def to_boundary(self, now: float) -> None:
        """Move the beginning of the stretch to the end of the step under way, where the batch may change."""
        if not self.running:
            self.since = max(self.since, now)
        elif now > self.since:
            stretch, elapsed = self._stretch, now - self.since
            steps = stretch.steps(elapsed)
            seconds = stretch.seconds(steps)
            if elapsed - seconds > 1e-9:
                steps += 1
                seconds = stretch.seconds(steps)
            self.advance(steps, seconds)

    def advance(self, steps: int, seconds: float) -> None:
        """So many steps later, which take so long."""
        self.since += seconds
        self.stats.busy_seconds += seconds
        self.stats.prefill_seconds += self._stretch.more_in(steps)
        self.step += steps
        self._stretch.advance(steps)

    def prefill_seconds(self, step: int) -> float:
        """Up to this step, which may be ahead of what is booked."""
        return self.stats.prefill_seconds + self._stretch.more_in(max(0, step - self.step))

    def next_change(self) -> tuple[int, float]:
        """Let waiting requests in; after how many steps, and seconds, the batch changes next."""
        ends = self._ends
        if self.waiting and not (ends and ends[0][0] <= self.step):  # else a request leaves first
            self._let_in()
        steps = self._steps_to_change()
        return steps, self._stretch.seconds(steps)

    def _steps_to_change(self) -> int:
        ends, running = self._ends, len(self.running)
        if not running:
            return 0
        while ends[0][2].ticket != ends[0][1]:
            heapq.heappop(ends)
        steps = ends[0][0] - self.step
        room = self.costs.kv_tokens - self._stretch.cached
        if steps * running > room and running > 1:
            steps = room // running
        return steps if steps > 0 else 0

    # ---------------------------------------------------------------------------------------------------- joining

    def _let_in(self) -> None:
        costs, stretch, running = self.costs, self._stretch, self.running
        new, new_pairs, joining = 0, 0.0, []
        while self.waiting and len(running) < costs.slots:
            turn = self.waiting[0]
            # Room must be left to grow, or the request that is let in would be preempted at once, again and again.
            growth = max(len(running) + 1, self._watermark)
            if running and stretch.cached + turn.context + growth > costs.kv_tokens:
                break
            self.waiting.popleft()
            tokens = turn.context - self._cached(turn)
            new += tokens
            new_pairs += pairs(tokens, turn.context)
            joining.append(turn)
            running[turn.request.id] = turn
            stretch.cached += turn.context
        if joining:
            self._join(joining, new, new_pairs)

    def _cached(self, turn: GpuAnswer) -> int:
        """Tokens of its context that need not be computed, and books those that must."""
        cache = self.caches.take(turn.request.trajectory)
        turn.kv_version = self.versions.current
        if turn.computed:
            turn.computed = False
            return turn.context
        if cache is None:
            known = lost = 0
        elif cache.version == self.versions.current or self._in_flight == "keep":
            known, lost = min(cache.tokens, turn.context - 1), 0
            turn.kv_version = cache.version
        else:
            known, lost = 0, min(cache.tokens, turn.context)
        if turn.preempted:
            lost, turn.preempted = turn.context, False
        self.stats.recomputed_tokens += lost
        self.stats.prefilled_tokens += turn.context - known - lost
        return known

    def _join(self, turns: list[GpuAnswer], new: int, new_pairs: float) -> None:
        costs, stretch = self.costs, self._stretch
        batch = len(self.running)
        stretch.tokens_more += new
        stretch.pairs_more += new_pairs
        tokens = ceil(stretch.tokens_more)
        steps = 1 if tokens <= costs.prefill_tokens else costs.prefill_steps(tokens)
        if stretch.steps_more < steps:
            stretch.steps_more = steps
        if costs.wake and batch == len(turns):  # no request ran
            stretch.extra += costs.wake
        # Of all that is to be computed, not only of what is new: together it may be too much to hide behind the reads.
        stretch.more = stretch.extra + costs.prefill(tokens, stretch.pairs_more, batch)
        self._resize()
        for turn in turns:
            turn.joined = self.step
            turn.from_step = self.step + stretch.steps_more - 1
            turn.ticket = self._tickets = self._tickets + 1
            heapq.heappush(self._ends, (turn.last_step, turn.ticket, turn))
        if self.caches.tokens > costs.kv_tokens - stretch.cached:
            self.stats.evictions += self.caches.shrink(costs.kv_tokens - stretch.cached)

    def change_costs(self, costs: EngineCosts) -> None:
        """From the next step on they take other times. What is being computed of contexts is not changed."""
        self.costs = costs
        self._stretch.per_token = costs.per_cached_token
        self._resize()

    def _resize(self) -> None:
        batch = self._stretch.batch = len(self.running)
        self._stretch.fixed = self.costs.fixed(batch)

    # ---------------------------------------------------------------------------------------------------- leaving

    def end_due(self) -> list[GpuAnswer]:
        """Take out, and return, the requests that have drawn their last token."""
        ends, step, ended = self._ends, self.step, []
        while ends and ends[0][0] <= step:
            _, ticket, turn = heapq.heappop(ends)
            if turn.ticket == ticket:
                self._leave(turn)
                self.stats.sampled_tokens += turn.drawn
                ended.append(turn)
        return ended

    def make_room(self) -> None:
        """Preempt the request that joined last, while the caches do not fit."""
        while len(self.running) > 1 and self._stretch.cached + len(self.running) > self.costs.kv_tokens:
            self._preempt(next(reversed(self.running.values())))

    def withdraw(self, turn: GpuAnswer, step: int) -> None:
        """It is aborted; what was drawn up to this step counts as sampled."""
        if turn.ticket:
            self._leave(turn, step)
        else:
            self.waiting.remove(turn)
        self.stats.sampled_tokens += turn.drawn

    def _leave(self, turn: GpuAnswer, step: int | None = None, keep_cache: bool = True) -> None:
        """Out of the batch, with what it has drawn up to this step."""
        del self.running[turn.request.id]
        turn.ticket = 0
        self._stretch.cached -= turn.context + self.step - turn.joined
        before = turn.drawn
        sampling = turn.request.sampling
        if sampling is not self._sampling:  # turn after turn it is the same
            self._sampling, self._transform = sampling, sampling.transform
        turn.leave(self.step if step is None else step, self.versions, self._transform)
        if keep_cache:
            tokens = turn.context + turn.drawn - before
            self.caches.put(turn.request.trajectory, tokens, turn.kv_version)
            if self.caches.tokens > self.costs.kv_tokens - self._stretch.cached:
                self.stats.evictions += self.caches.shrink(self.costs.kv_tokens - self._stretch.cached)
        self._resize()
        if not self.running:
            self._stretch.forget_more()

    def _preempt(self, turn: GpuAnswer) -> None:
        self._leave(turn, keep_cache=False)
        turn.context = len(turn.request.tokens) + turn.drawn
        turn.preempted = True
        self.waiting.appendleft(turn)
        self.stats.evictions += 1

    # ------------------------------------------------------------------------------------------------ new weights

    def recompute_all(self) -> None:
        """Rebuild the caches of the batch under the new weights, before the next token is decoded."""
        contexts = [turn.context + turn.drawn_at(self.step) - turn.drawn for turn in self.running.values()]
        if not contexts:
            return
        tokens = sum(contexts)
        seconds = self.costs.recompute(tokens, sum(pairs(context, context) for context in contexts))
        for turn in self.running.values():
            turn.kv_version = self.versions.current
        self.stats.recomputed_tokens += tokens
        self.stats.recompute_seconds += seconds
        self._stretch.more += seconds
        self._stretch.extra += seconds
        self._stretch.steps_more = max(1, self._stretch.steps_more)

    def restart_all(self) -> None:
        turns = list(self.running.values())
        for turn in reversed(turns):
            self._leave(turn, keep_cache=False)
            lost = turn.restart()
            self.stats.sampled_tokens += lost
            self.stats.restarted_tokens += lost
            self.waiting.appendleft(turn)
