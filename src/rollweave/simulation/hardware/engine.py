"""A simulated engine on modelled hardware: continuous batching, a KV cache of finite size, advanced per event.

It costs one timer per change of the batch, however many tokens lie between (`batch.py`):

    arrival          joins at the next step; computing its new context takes the time of prefill, beside decoding
    end              leaves its cache behind for its trajectory's next turn, while there is room
    cache full       the request that joined last is preempted: its cache goes, and is computed again later
    new weights      what becomes of caches and answers under way is `in_flight`, as in a real engine

It can die: then every call fails, also those that are open, and what it had sampled of open answers is lost.

Prefill workers of their own: they compute contexts and hand the KV cache to the engine that decodes (xPyD).

A trajectory stays with its worker, which keeps what it computed; what the decode worker sampled meanwhile is part of
the next prefill. Only what is new travels: the decode worker has the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from rollweave.clock import Clock
from rollweave.config.control import InFlight
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.errors import EngineGone
from rollweave.observability.events import Emitter
from rollweave.seeds import generator
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.hardware.answer import GpuAnswer
from rollweave.simulation.hardware.batch import ContinuousBatch
from rollweave.simulation.world.engine import SyncModel, refuse_unprepared, simulated_fingerprint
from rollweave.trajectory import TokenIds
from rollweave.weights.buckets import Fingerprint


class _Known(NamedTuple):
    worker: int
    tokens: int
    version: int


class PrefillPool:
    def __init__(self, clock: Clock, costs: EngineCosts, workers: int) -> None:
        self._clock = clock
        self._costs = costs
        self._free_at = [0.0] * workers
        self._known: dict[str, _Known] = {}
        self.busy_seconds = 0.0
        """Of all workers together."""

    def compute(self, trajectory: str, context: int, version: int) -> tuple[int, float]:
        """How many tokens of this context have to be computed, and when the decode worker has its cache."""
        now = self._clock.now()
        known = self._known.get(trajectory)
        worker = known.worker if known else self._free_at.index(min(self._free_at))
        new = context - (known.tokens if known and known.version == version else 0)
        seconds = self._costs.recompute(new, pairs(new, context))
        self._free_at[worker] = max(now, self._free_at[worker]) + seconds
        self._known[trajectory] = _Known(worker, context, version)
        self.busy_seconds += seconds
        return new, self._free_at[worker] + self._costs.handover(new)

    def release(self, trajectory: str) -> None:
        self._known.pop(trajectory, None)


class GpuEngine:
    def __init__(
        self,
        clock: Clock,
        costs: EngineCosts,
        script: Callable[[Request], TokenIds],
        *,
        in_flight: InFlight = "recompute",
        sync: SyncModel | None = None,
        number: int = 0,
        prefix_cache: bool = True,
        recorder: Emitter | None = None,
        prefill: PrefillPool | None = None,
    ) -> None:
        """`script` says what the answer to a request will be; `recorder` hears of every turn;
        with `prefill` this engine decodes what workers of that pool computed."""
        self._clock = clock
        self._batch = ContinuousBatch(costs, in_flight, prefix_cache)
        self._in_flight = in_flight
        self._sync = sync or SyncModel()
        self._number = number
        self._script = script
        self._recorder = recorder
        self._prefill = prefill
        self._timer: asyncio.TimerHandle | None = None
        self._standing = False
        """Suspended or dead."""
        self._suspensions = 0
        self._dead = False
        self._staged: int | None = None
        """Prepared, not yet committed."""

    # ------------------------------------------------------------------------------------------------ the contract

    def generate(self, request: Request) -> Awaitable[Completion]:
        if self._dead:
            raise self._gone()
        turn = GpuAnswer(request, self._script(request), self._clock.loop)
        self._batch.stats.sampled_tokens -= turn.drawn  # begun elsewhere, and counted there
        if self._prefill is None:
            self._enter(turn)
        else:
            self._compute_elsewhere(turn, self._prefill)
        return turn.done

    def abort(self, request_id: str) -> None:
        batch = self._batch
        turn = batch.running.get(request_id) or next((t for t in batch.waiting if t.request.id == request_id), None)
        if turn is not None:
            self._withdraw(turn)
            turn.answer(turn.completion(aborted=True))

    def release(self, trajectory: str) -> None:
        self._batch.caches.drop(trajectory)
        if self._prefill is not None:
            self._prefill.release(trajectory)

    async def suspend(self) -> None:
        """The step under way ends first."""
        self._check_alive()
        stood = self._standing
        self._stand_still()
        self._suspensions += 1
        if not stood:
            await self._clock.sleep(max(0.0, self._batch.since - self._clock.now()))
            self._answer_due()

    async def resume(self) -> None:
        self._check_alive()
        self._suspensions -= 1
        self._go_on()

    async def prepare(self, version: int) -> Fingerprint:
        self._check_alive()
        await self._clock.sleep(self._sync.prepare(generator(self._number, "prepare", version)))
        self._check_alive()
        self._staged = version
        return simulated_fingerprint(version)

    async def commit(self, version: int) -> None:
        self._check_alive()
        refuse_unprepared(version, self._staged)
        await self._clock.sleep(self._sync.commit(generator(self._number, "commit", version)))
        self._check_alive()
        self._staged = None
        self._batch.versions.change(self._batch.step, version)
        if self._in_flight == "restart_turn":
            self._batch.restart_all()
        elif self._in_flight == "recompute":
            self._batch.recompute_all()

    @property
    def counters(self) -> EngineStats:
        """What is booked; `stats` adds what is under way."""
        return self._batch.stats

    def busy_seconds(self) -> float:
        batch = self._batch
        # Negative if the step under way is booked already.
        more = self._clock.now() - batch.since if batch.running and not self._standing else 0.0
        return batch.stats.busy_seconds + more

    async def stats(self) -> EngineStats:
        self._check_alive()
        batch = self._batch
        done = self._steps_done()
        drawn = sum(turn.drawn_at(done) for turn in batch.running.values()) + sum(turn.drawn for turn in batch.waiting)
        version = batch.versions.current
        return replace(
            batch.stats,
            steps=done,
            sampled_tokens=batch.stats.sampled_tokens + drawn,
            busy_seconds=self.busy_seconds(),
            running=len(batch.running),
            waiting=len(batch.waiting),
            version=version,
            checksum=simulated_fingerprint(version).checksum,
        )

    # ----------------------------------------------------------------------------------------------------- death

    def die(self) -> None:
        """The process is gone, and with it every cache and every token that was not yet answered."""
        self._stand_still()
        self._dead = True
        self._batch.restart_all()
        for turn in [*self._batch.running.values(), *self._batch.waiting]:
            if not turn.done.done():
                turn.done.set_exception(self._gone())

    def _check_alive(self) -> None:
        if self._dead:
            raise self._gone()

    def _gone(self) -> EngineGone:
        return EngineGone(f"engine {self._number} is gone")

    # ------------------------------------------------------------------------------------------- changes in time

    def _plan(self) -> None:
        """Set the timer for the next change of the batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = self._batch
        steps, seconds = batch.next_change()
        if batch.running:
            self._timer = self._clock.loop.call_at(batch.since + seconds, self._change, steps, seconds)

    def _change(self, steps: int, seconds: float) -> None:
        self._timer = None
        if steps:
            self._batch.advance(steps, seconds)
        self._answer_due()
        self._batch.make_room()
        self._plan()

    def _answer_due(self) -> None:
        for turn in self._batch.end_due():
            turn.answer(turn.completion())
            if self._recorder is not None:
                self._tell(self._recorder, turn)

    def _steps_done(self) -> int:
        return self._batch.step if self._standing else self._batch.steps_done(self._clock.now())

    def _withdraw(self, turn: GpuAnswer) -> None:
        done = self._steps_done()
        if not self._standing:
            self._batch.to_boundary(self._clock.now())
        self._batch.withdraw(turn, done)
        if not self._standing:
            self._plan()

    def _stand_still(self) -> None:
        if not self._standing:
            self._batch.to_boundary(self._clock.now())
            self._stop_timer()
            self._standing = True

    def _go_on(self) -> None:
        self._standing = self._suspensions > 0 or self._dead
        if not self._standing:
            self._batch.since = max(self._batch.since, self._clock.now())
            self._plan()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------------------------------------------ turns

    def _enter(self, turn: GpuAnswer) -> None:
        if turn.done.done():  # nobody waits for it any more
            return
        if self._dead:
            turn.done.set_exception(self._gone())
            return
        self._batch.waiting.append(turn)
        if not self._standing:
            self._batch.to_boundary(self._clock.now())
            self._plan()

    def _compute_elsewhere(self, turn: GpuAnswer, prefill: PrefillPool) -> None:
        new, ready = prefill.compute(turn.request.trajectory, turn.context, self._batch.versions.current)
        self._batch.stats.prefilled_tokens += new
        turn.computed = True
        self._clock.loop.call_at(ready, self._enter, turn)

    def _tell(self, recorder: Emitter, turn: GpuAnswer) -> None:
        id, tag, seconds = turn.request.id, turn.request.tag, self._clock.now() - turn.asked
        recorder.emit("turn.end", id=id, tag=tag, engine=self._number, tokens=turn.drawn, seconds=seconds)
