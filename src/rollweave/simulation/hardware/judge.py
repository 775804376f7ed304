"""A judge: a language model that scores trajectories, on devices of its own or on functions.

Devices of its own are there all the time. Functions start when a call finds no free seat, which takes a cold start,
and stop when they had nothing to do for a while; they are paid for as long as they live, and several jobs may share
them. The control plane's own rule (`rewards/scaling.py`) decides all of that; the model knows how long things take.

A colocated judge has no devices: each instance computes beside one engine, and both are slower while it does. A share
of its layers lies in host memory and is fetched while the others compute, so a pass over its weights takes the longer
of the two (RollPacker's layer-wise offload).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count as numbers

from rollweave.clock import Clock
from rollweave.config.cluster import Pool
from rollweave.config.scenario import Scenario
from rollweave.rewards.scaling import InstanceScaler, InstanceUse, ScalingLimits, Seating
from rollweave.seeds import generator
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.draws import count, sampler
from rollweave.trajectory import Trajectory

ShareDevices = Callable[[int, float], None]
"""Takes the place of an engine, and how many times as long it takes from now on."""


class Judge:
    def __init__(self, scenario: Scenario, pool: Pool, clock: Clock, share: ShareDevices | None = None) -> None:
        self._config = config = scenario.judge
        self._share = share if config.colocated else None
        self._clock = clock
        self._seed = scenario.seed
        constants, elastic = scenario.constants, pool.device == "serverless"
        model, parts = scenario.spec(config.model), pool.tensor_parallel if config.colocated else 1
        self._costs = EngineCosts(model, scenario.cluster.device(pool), constants, parts)
        fetched = config.offloaded * model.weight_bytes if config.colocated else 0.0
        self._fetch = fetched / (parts * constants.snapshot_bandwidth * 1e9)
        """Seconds in which the layers in host memory come to the devices."""
        self._factor = config.sharing_slowdown if config.colocated else 1.0
        self._cold_start = constants.cold_start if config.cold_start is None else config.cold_start
        self._io_seconds = constants.serverless_io if elastic else 0.0
        most = pool.workers if config.colocated else pool.count
        limits = ScalingLimits(most, config.concurrency, 0 if elastic else most, config.idle_seconds)
        self._scaler = InstanceScaler(limits, clock.now())
        self._calls = numbers()
        self._queued: dict[int, asyncio.Future[Seating]] = {}
        self._ready_at: dict[int, float] = {}
        """When each function has started; devices of one's own are there from the start."""
        self._stop_timer: asyncio.TimerHandle | None = None

    async def score(self, trajectory: Trajectory) -> None:
        """Returns when the judge has answered."""
        call = next(self._calls)
        seating = self._scaler.ask(call, self._clock.now())
        try:
            if seating is None:
                self._queued[call] = self._clock.loop.create_future()
                seating = await self._queued[call]
            cold = self._wait_for_start(seating)
            self._tell_engine(seating.instance)
            await self._clock.sleep(cold + self._seconds(trajectory, self._scaler.load(seating.instance)))
        finally:
            self._leave(call)
            if seating is not None:
                self._tell_engine(seating.instance)

    def _tell_engine(self, instance: int) -> None:
        if self._share is not None:
            self._share(instance, self._factor if self._scaler.load(instance) else 1.0)

    def use(self) -> InstanceUse:
        return self._scaler.use(self._clock.now())

    def _wait_for_start(self, seating: Seating) -> float:
        """Seconds until the instance of this seat answers."""
        if seating.starts_instance:
            self._ready_at[seating.instance] = self._clock.now() + self._cold_start
        return max(0.0, self._ready_at.get(seating.instance, 0.0) - self._clock.now())

    def _leave(self, call: int) -> None:
        following = self._scaler.leave(call, self._clock.now())
        self._queued.pop(call, None)
        if following is not None:
            seat = self._queued[following.call]
            if not seat.done():  # else it has just met its deadline, and leaves the seat as soon as it runs
                seat.set_result(following)
        self._plan_stop()

    def _plan_stop(self) -> None:
        if self._stop_timer is None and (due := self._scaler.next_stop()) is not None:
            self._stop_timer = self._clock.loop.call_at(due, self._stop_idle)

    def _stop_idle(self) -> None:
        self._stop_timer = None
        for number in self._scaler.stop_idle(self._clock.now()):
            del self._ready_at[number]
        self._plan_stop()

    def _seconds(self, trajectory: Trajectory, calls: int) -> float:
        config, costs, context = self._config, self._costs, trajectory.length
        rng = generator(self._seed, "judge", trajectory.id)
        if config.seconds is not None:
            return self._io_seconds + sampler(config.seconds)(rng)
        answer = count(sampler(config.answer_tokens), rng)
        reading = max(costs.recompute(context, pairs(context, context)), costs.prefill_steps(context) * self._fetch)
        computing = costs.fixed(calls) + costs.per_cached_token * (context + answer / 2) * calls
        return self._io_seconds + self._factor * (reading + answer * max(computing, self._fetch))
