"""A simulated engine on modelled hardware: continuous batching, a KV cache of finite size, advanced per event.

It costs one timer per change of the batch, however many tokens lie between (`batch.py`):

    arrival          joins at the next step; computing its new context takes the time of prefill, beside decoding
    end              leaves its cache behind for its trajectory's next turn, while there is room
    cache full       the request that joined last is preempted: its cache goes, and is computed again later
    new weights      what becomes of caches and answers under way is `in_flight`, as in a real engine

It can die: then every call fails, also those that are open, and what it had sampled of open answers is lost.

If a prefill engine has computed the context of a request (`prefill.py`), this engine only decodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from rollweave.clock import Clock
from rollweave.config.cluster import Slowdown
from rollweave.config.control import InFlight
from rollweave.config.hardware import WeightTimes
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.observability.events import Emitter
from rollweave.simulation.costs.roofline import EngineCosts, SlowedEngine
from rollweave.simulation.hardware.answer import GpuAnswer
from rollweave.simulation.hardware.batch import ContinuousBatch
from rollweave.simulation.hardware.modelled import NO_TIME, ModelledEngine, simulated_fingerprint
from rollweave.trajectory import TokenIds
from rollweave.versions import Version


class GpuEngine(ModelledEngine):
    def __init__(
        self,
        clock: Clock,
        costs: EngineCosts,
        script: Callable[[Request], TokenIds],
        *,
        in_flight: InFlight = "recompute",
        weights: WeightTimes = NO_TIME,
        number: int = 0,
        prefix_cache: bool = True,
        recorder: Emitter | None = None,
        slowdown: Slowdown | None = None,
    ) -> None:
        """`script` says what the answer to a request will be; `recorder` hears of every turn."""
        super().__init__(clock, number, weights)
        self._costs, self._slowdown = costs, slowdown or Slowdown()
        self._batch = ContinuousBatch(costs, in_flight, prefix_cache)
        self._shared = 1.0
        self._slow_down(version=0)
        self._in_flight = in_flight
        self._script = script
        self._recorder = recorder
        self._timer: asyncio.TimerHandle | None = None
        self._standing = False
        """Suspended or dead."""
        self._suspensions = 0

    # ------------------------------------------------------------------------------------------------ the contract

    def generate(self, request: Request) -> Awaitable[Completion]:
        if self._dead:
            raise self._gone()
        turn = GpuAnswer(request, self._script(request), self._clock.loop)
        self._batch.stats.sampled_tokens -= turn.drawn  # begun elsewhere, and counted there
        self._batch.waiting.append(turn)
        if not self._standing:
            self._batch.to_boundary(self._clock.now())
            self._plan()
        return turn.done

    def abort(self, request_id: str) -> None:
        batch = self._batch
        turn = batch.running.get(request_id) or next((t for t in batch.waiting if t.request.id == request_id), None)
        if turn is None:
            return
        done = self._steps_done()
        if not self._standing:
            batch.to_boundary(self._clock.now())
        batch.withdraw(turn, done)
        if not self._standing:
            self._plan()
        turn.answer(turn.completion(aborted=True))

    def release(self, trajectory: str) -> None:
        self._batch.caches.take(trajectory)

    async def suspend(self, asleep: bool = False) -> None:
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
        self._standing = self._suspensions > 0
        if not self._standing:
            self._batch.since = max(self._batch.since, self._clock.now())
            self._plan()

    async def commit(self, version: int) -> None:
        await self._swap(version)
        self._batch.versions.change(self._batch.step, version)
        self._slow_down(version)
        if self._in_flight == "restart_turn":
            self._batch.restart_all()
        elif self._in_flight == "recompute":
            self._batch.recompute_all()

    def share(self, factor: float) -> None:
        """Another program computes on its devices from the next step on, and all takes so many times as long; 1: it has
        ended."""
        if factor == self._shared:
            return
        self._shared = factor
        if not self._standing:
            self._batch.to_boundary(self._clock.now())
        self._slow_down(self._batch.versions.current)
        if not self._standing:
            self._plan()

    def _slow_down(self, version: int) -> None:
        prefill, decode = self._slowdown.at(Version(version).number)
        factors = (prefill * self._shared, decode * self._shared)
        self._batch.change_costs(self._costs if factors == (1.0, 1.0) else SlowedEngine(self._costs, *factors))

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
            prefill_seconds=batch.prefill_seconds(done),
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

    # ------------------------------------------------------------------------------------------- changes in time

    def _plan(self) -> None:
        """Set the timer for the next change of the batch."""
        self._stop_timer()
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
                id, task, seconds = turn.request.id, turn.request.task, self._clock.now() - turn.asked
                self._recorder.emit(
                    "turn.end", id=id, task=task, engine=self.number, tokens=turn.drawn, seconds=seconds
                )

    def _steps_done(self) -> int:
        return self._batch.step if self._standing else self._batch.steps_done(self._clock.now())

    def _stand_still(self) -> None:
        if not self._standing:
            self._batch.to_boundary(self._clock.now())
            self._stop_timer()
            self._standing = True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
