"""A simulated engine on modelled hardware: continuous batching, a KV cache of finite size, advanced per event.

Every request that runs gains one token a step. So the engine keeps a count of steps, a heap of the steps at which
requests end, and the time its present stretch of steps began; between two changes of the batch everything follows
from those (`stretch.py`). It costs one timer per change, however many tokens lie between.

    arrival          joins at the next step; computing its new context takes the time of prefill, beside decoding
    end              leaves its cache behind for its trajectory's next turn, while there is room
    cache full       the request that joined last is preempted: its cache goes, and is computed again later
    new weights      what becomes of caches and answers under way is `in_flight`, as in a real engine

It can die: what is asked of it waits for its successor, which has the committed weights and begins open turns again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import ceil

from rollweave.clock import Clock
from rollweave.config.job import InFlight
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.observability.events import Emitter
from rollweave.seeds import generator
from rollweave.simulation.caches import IdleCaches
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.engine import SyncModel, simulated_fingerprint
from rollweave.simulation.prefill import PrefillPool
from rollweave.simulation.script import Script
from rollweave.simulation.stretch import Stretch
from rollweave.simulation.turn import Turn, Versions
from rollweave.weights.fingerprint import Fingerprint


def scripted(request: Request) -> int:
    """The length of the answer, as the workload wrote it into the context."""
    assert isinstance(request.tokens, Script), "a simulated engine needs scripted tokens, or an `answer_tokens`"
    return request.tokens.answer


class GpuEngine:
    def __init__(
        self,
        clock: Clock,
        costs: EngineCosts,
        *,
        in_flight: InFlight = "recompute",
        sync: SyncModel | None = None,
        number: int = 0,
        prefix_cache: bool = True,
        answer_tokens: Callable[[Request], int] = scripted,
        recorder: Emitter | None = None,
        prefill: PrefillPool | None = None,
    ) -> None:
        """`recorder` hears of every turn; with `prefill` this engine decodes what workers of that pool computed."""
        self.costs = costs
        self._clock = clock
        self._in_flight = in_flight
        self._sync = sync or SyncModel()
        self._number = number
        self._answer_tokens = answer_tokens
        self._recorder = recorder
        self._prefill = prefill
        self._stats = EngineStats()
        self._versions = Versions()
        self._waiting: deque[Turn] = deque()
        self._running: dict[str, Turn] = {}
        self._ends: list[tuple[int, int, Turn]] = []
        """(last step, ticket, turn), a heap; who has left meanwhile, or came back with another ticket, is skipped."""
        self._tickets = 0
        self._caches = IdleCaches(enabled=prefix_cache)
        self._stretch = Stretch()
        self._stretch.per_token = costs.per_cached_token
        self._step = 0
        self._since = 0.0
        """When step `_step` was, or will be, over: the stretch counts from there."""
        self._timer: asyncio.TimerHandle | None = None
        self._suspended = False
        self._alive = asyncio.Event()
        self._alive.set()

    # ------------------------------------------------------------------------------------------------ the contract

    async def generate(self, request: Request) -> Completion:
        started = self._clock.now()
        turn = Turn(request, self._clock.loop.create_future(), self._answer_tokens(request))
        if self._prefill is not None:
            await self._compute_elsewhere(turn, self._prefill)
        self._waiting.append(turn)
        if not self._standing:
            self._to_boundary()
            self._plan()
        try:
            completion = await turn.done
        except asyncio.CancelledError:
            self._withdraw(turn)
            raise
        if self._recorder is not None:
            self._tell(turn, self._clock.now() - started)
        return completion

    def _tell(self, turn: Turn, seconds: float) -> None:
        assert self._recorder is not None
        id, tag = turn.request.id, turn.request.tag
        self._recorder.emit("turn.end", id=id, tag=tag, engine=self._number, tokens=turn.drawn, seconds=seconds)

    async def _compute_elsewhere(self, turn: Turn, prefill: PrefillPool) -> None:
        new = await prefill.compute(turn.request.trajectory, turn.context, self._versions.current)
        self._stats.prefilled_tokens += new
        turn.computed = True

    def abort(self, request_id: str) -> None:
        turn = self._running.get(request_id) or next((t for t in self._waiting if t.request.id == request_id), None)
        if turn is not None and not turn.done.done():
            self._withdraw(turn)
            turn.done.set_result(turn.completion(aborted=True))

    def release(self, trajectory: str) -> None:
        self._caches.drop(trajectory)
        if self._prefill is not None:
            self._prefill.release(trajectory)

    async def suspend(self) -> None:
        """The step under way ends first."""
        if not self._standing:
            self._to_boundary()
            self._stop_timer()
            self._suspended = True
            await self._clock.sleep(max(0.0, self._since - self._clock.now()))
            self._end_due()
        self._suspended = True

    async def resume(self) -> None:
        self._suspended = False
        self._go_on()

    async def prepare(self, version: int) -> Fingerprint:
        await self._alive.wait()
        await self._clock.sleep(self._sync.prepare(generator(self._number, "prepare", version)))
        await self._alive.wait()  # a successor stages it again, in no time
        return simulated_fingerprint(version)

    async def commit(self, version: int) -> None:
        await self._alive.wait()
        await self._clock.sleep(self._sync.commit(generator(self._number, "commit", version)))
        await self._alive.wait()
        self._versions.change(self._step, version)
        if self._in_flight == "restart_turn":
            self._restart_all()
        elif self._in_flight == "recompute":
            self._recompute_all()

    @property
    def counters(self) -> EngineStats:
        """What is booked; `stats` adds what is under way."""
        return self._stats

    def busy_seconds(self) -> float:
        return self._stats.busy_seconds + self._busy_since(self._clock.now())

    async def stats(self) -> EngineStats:
        now = self._clock.now()
        done = self._steps_done(now)
        version = self._versions.current
        return replace(
            self._stats,
            steps=done,
            sampled_tokens=self._stats.sampled_tokens + sum(t.drawn_at(done) for t in self._running.values()),
            busy_seconds=self.busy_seconds(),
            running=len(self._running),
            waiting=len(self._waiting),
            version=version,
            checksum=simulated_fingerprint(version).checksum,
        )

    async def close(self) -> None:
        pass

    # ------------------------------------------------------------------------------------------ death and revival

    def die(self) -> None:
        """The process is gone, and with it every cache and every token that was not yet answered."""
        if not self._standing:
            self._to_boundary()
        self._alive.clear()
        self._stop_timer()
        self._caches = IdleCaches(self._caches.enabled)
        self._restart_all()

    def revive(self) -> None:
        self._alive.set()
        self._go_on()

    # --------------------------------------------------------------------------------------------- steps and time

    @property
    def _standing(self) -> bool:
        return self._suspended or not self._alive.is_set()

    def _steps_done(self, now: float) -> int:
        if self._standing or not self._running or now <= self._since:
            return self._step
        return self._step + self._stretch.steps(now - self._since)

    def _busy_since(self, now: float) -> float:
        """Beyond what is booked; negative if the step under way is booked already."""
        return now - self._since if self._running and not self._standing else 0.0

    def _to_boundary(self) -> None:
        """Move the beginning of the stretch to the end of the step under way, where the batch may change."""
        now = self._clock.now()
        if not self._running:
            self._since = max(self._since, now)
        elif now > self._since:
            self._advance(self._stretch.steps(now - self._since))
            if now - self._since > 1e-9:
                self._advance(1)

    def _advance(self, steps: int) -> None:
        seconds = self._stretch.seconds(steps)
        self._since += seconds
        self._stats.busy_seconds += seconds
        self._step += steps
        self._stretch.advance(steps)

    def _plan(self) -> None:
        """Let in who waits, then set the timer for the next change of the batch."""
        self._stop_timer()
        steps = self._steps_to_change()
        if self._waiting and steps > 0:  # else somebody leaves first
            self._let_in()
            steps = self._steps_to_change()
        if not self._running:
            return
        self._timer = self._clock.loop.call_at(self._since + self._stretch.seconds(steps), self._change, steps)

    def _steps_to_change(self) -> int:
        ends, running = self._ends, self._running
        if not running:
            return 1
        while ends[0][2].ticket != ends[0][1]:
            heapq.heappop(ends)
        steps = ends[0][0] - self._step
        room = self.costs.kv_tokens - self._stretch.cached
        if steps * len(running) > room and len(running) > 1:
            steps = room // len(running)
        return max(0, steps)

    def _change(self, steps: int) -> None:
        self._timer = None
        if steps:
            self._advance(steps)
        self._end_due()
        while len(self._running) > 1 and self._stretch.cached + len(self._running) > self.costs.kv_tokens:
            self._preempt(next(reversed(self._running.values())))
        self._plan()

    def _end_due(self) -> None:
        ends, step = self._ends, self._step
        while ends and ends[0][0] <= step:
            _, ticket, turn = heapq.heappop(ends)
            if turn.ticket == ticket:
                self._leave(turn)
                self._stats.sampled_tokens += turn.drawn
                if not turn.done.done():
                    turn.done.set_result(turn.completion())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_on(self) -> None:
        if not self._standing:
            self._since = max(self._since, self._clock.now())
            self._plan()

    # -------------------------------------------------------------------------------------------------- the batch

    def _let_in(self) -> None:
        costs, stretch = self.costs, self._stretch
        new, new_pairs, joining = 0, 0.0, []
        while self._waiting and len(self._running) < costs.max_batch:
            turn = self._waiting[0]
            # Room must be left to grow, or whoever is let in would be preempted at once, again and again.
            growth = max(len(self._running) + 1, int(costs.constants.kv_watermark * costs.kv_tokens))
            if self._running and stretch.cached + turn.context + growth > costs.kv_tokens:
                break
            self._waiting.popleft()
            tokens = turn.context - self._cached(turn)
            new += tokens
            new_pairs += pairs(tokens, turn.context)
            joining.append(turn)
            self._running[turn.request.id] = turn
            stretch.cached += turn.context
        if joining:
            self._join(joining, new, new_pairs)

    def _cached(self, turn: Turn) -> int:
        """Tokens of its context that need not be computed, and books those that must."""
        cache = self._caches.take(turn.request.trajectory)
        turn.kv_version = self._versions.current
        if turn.computed:
            turn.computed = False
            return turn.context
        if cache is None:
            known = lost = 0
        elif cache.version == self._versions.current or self._in_flight == "keep":
            known, lost = min(cache.tokens, turn.context - 1), 0
            turn.kv_version = cache.version
        else:
            known, lost = 0, min(cache.tokens, turn.context)
        if turn.preempted:
            lost, turn.preempted = turn.context, False
        self._stats.recomputed_tokens += lost
        self._stats.prefilled_tokens += turn.context - known - lost
        return known

    def _join(self, turns: list[Turn], new: int, new_pairs: float) -> None:
        costs, stretch = self.costs, self._stretch
        batch = len(self._running)
        stretch.tokens_more += new
        stretch.pairs_more += new_pairs
        tokens = ceil(stretch.tokens_more)
        stretch.steps_more = max(stretch.steps_more, costs.prefill_steps(tokens))
        # Of all that is to be computed, not only of what is new: together it may be too much to hide behind the reads.
        stretch.more = stretch.recompute + costs.prefill(tokens, stretch.pairs_more, batch)
        self._resize()
        for turn in turns:
            turn.joined = self._step
            turn.from_step = self._step + stretch.steps_more - 1
            turn.ticket = self._tickets = self._tickets + 1
            heapq.heappush(self._ends, (turn.last_step, turn.ticket, turn))
        self._stats.evictions += self._caches.shrink(costs.kv_tokens - stretch.cached)

    def _resize(self) -> None:
        batch = self._stretch.batch = len(self._running)
        self._stretch.fixed = self.costs.fixed(batch)

    def _leave(self, turn: Turn, step: int | None = None, keep_cache: bool = True) -> None:
        """Out of the batch, with what it has drawn up to this step."""
        del self._running[turn.request.id]
        turn.ticket = 0
        self._stretch.cached -= turn.context + self._step - turn.joined
        before = turn.drawn
        turn.leave(self._step if step is None else step, self._versions)
        if keep_cache:
            tokens = turn.context + turn.drawn - before
            self._caches.put(turn.request.trajectory, tokens, turn.kv_version)
            self._stats.evictions += self._caches.shrink(self.costs.kv_tokens - self._stretch.cached)
        self._resize()
        if not self._running:
            self._stretch.forget_more()

    def _withdraw(self, turn: Turn) -> None:
        """Whoever asked has gone, or wants it to end: what was drawn counts as sampled."""
        if self._running.get(turn.request.id) is turn:
            done = self._steps_done(self._clock.now())
            if not self._standing:
                self._to_boundary()
            self._leave(turn, done)
            self._stats.sampled_tokens += turn.drawn
            if not self._standing:
                self._plan()
        elif turn in self._waiting:
            self._waiting.remove(turn)
            self._stats.sampled_tokens += turn.drawn

    def _preempt(self, turn: Turn) -> None:
        self._leave(turn, keep_cache=False)
        turn.context = len(turn.request.tokens) + turn.drawn
        turn.preempted = True
        self._waiting.appendleft(turn)
        self._stats.evictions += 1

    # ------------------------------------------------------------------------------------------------ new weights

    def _recompute_all(self) -> None:
        """Rebuild the caches of the batch under the new weights, before anybody decodes."""
        contexts = [turn.context + turn.drawn_at(self._step) - turn.drawn for turn in self._running.values()]
        if not contexts:
            return
        tokens = sum(contexts)
        seconds = self.costs.recompute(tokens, sum(pairs(context, context) for context in contexts))
        for turn in self._running.values():
            turn.kv_version = self._versions.current
        self._stats.recomputed_tokens += tokens
        self._stats.recompute_seconds += seconds
        self._stretch.more += seconds
        self._stretch.recompute += seconds
        self._stretch.steps_more = max(1, self._stretch.steps_more)

    def _restart_all(self) -> None:
        turns = list(self._running.values())
        for turn in reversed(turns):
            self._leave(turn, keep_cache=False)
            lost = turn.restart()
            self._stats.sampled_tokens += lost
            self._stats.restarted_tokens += lost
            self._waiting.appendleft(turn)
